// backward_global_mean: one mean over all targets of the global batch, however they lie on the ranks.

#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

class GlobalMean : public ::testing::TestWithParam<int> {};

TEST_P(GlobalMean, IsThatOfOneModelOverTheWholeBatchAlsoWhenARankHasNoTarget) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    Batch batch = make_batch(mesh.size() - 1, 7, 37); // one row less than ranks: the last gets none
    const auto reference = load_whole(directory);
    const at::Tensor loss = causal_lm_loss_sum(reference->forward(batch.ids), batch.labels) /
                            static_cast<double>(count_targets(batch.labels));
    loss.backward();
    const ParallelModel parallel = parallelize(directory, mesh, exact_options());
    const Batch mine = part_of(batch, mesh);
    ASSERT_EQ(count_targets(mine.labels) == 0, mesh.rank() == mesh.size() - 1);
    EXPECT_NEAR(backward_global_mean(*parallel.model, mesh, mine.ids, mine.labels), loss.item<double>(), 1e-6);
    expect_gradient_shards(*parallel.state, gradients_of(*reference), 2e-6);
  });
}

TEST_P(GlobalMean, WithoutAnyTargetIsRefusedOnEveryRank) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const ParallelModel parallel = parallelize(directory, mesh, exact_options());
    const at::Tensor ids = at::zeros({1, 5}, at::kLong);
    expect_refusal([&] { backward_global_mean(*parallel.model, mesh, ids, at::full_like(ids, kIgnoredLabel)); },
                   Code::kDataTooShort,
                   {mesh.where(), "-100"});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GlobalMean, ::testing::Values(2, 4), [](const auto& info) {
  return concat(info.param, "ranks");
});

} // namespace
} // namespace tieshard::testing

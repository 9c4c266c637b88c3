#include "tieshard/runtime/train/unsharded.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

at::Tensor some_ids() {
  return at::arange(12, at::kLong).reshape({2, 6});
}

TEST(Unsharded, EagerAndMetaAndShardedOnOneRankGiveTheSameLogits) {
  const at::NoGradGuard no_grad;
  for (const bool tied : {true, false}) {
    const auto directory =
        write_tiny_llama("model", {.tied = tied, .head = tied ? StoredHead::kAbsent : StoredHead::kDifferent});
    const UnshardedModel eager = load_unsharded(directory, DeviceMesh(), {}, Materialization::kEager);
    const UnshardedModel meta = load_unsharded(directory, DeviceMesh(), {}, Materialization::kMeta);
    const at::Tensor expected = eager.model->forward(some_ids());
    EXPECT_TRUE(at::equal(meta.model->forward(some_ids()), expected));
    EXPECT_TRUE(at::equal(parallelize(directory, DeviceMesh(), {}).model->forward(some_ids()), expected));
    EXPECT_GT(expected.abs().max().item<float>(), 0.0F);
    EXPECT_EQ(unique_parameters(*eager.model).size(), named_parameters(*eager.model).size() - (tied ? 1 : 0));
    EXPECT_EQ(unique_parameters(*eager.model).size(), unique_parameters(*meta.model).size());
  }
}

TEST(Unsharded, ConvertsToTheDtypeThatIsAskedFor) {
  const auto directory = write_tiny_llama("model", {});
  for (const Materialization how : {Materialization::kEager, Materialization::kMeta}) {
    const UnshardedModel model = load_unsharded(directory, DeviceMesh(), {.param_dtype = at::kBFloat16}, how);
    for (const NamedTensor& named : named_parameters(*model.model)) {
      EXPECT_EQ(named.tensor.scalar_type(), at::kBFloat16) << named.fqn;
    }
  }
}

TEST(Unsharded, IsRefusedOnSeveralRanks) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    EXPECT_THROW(load_unsharded(directory, mesh, {}, Materialization::kMeta), UsageError);
  });
}

} // namespace
} // namespace tieshard::testing

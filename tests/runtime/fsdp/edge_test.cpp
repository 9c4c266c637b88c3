// Odd but legal ways to run units: docs/fully_shard.md says what is defined.

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

/// `layer` runs twice, as in a model that shares one layer over its depth; `vector` is shorter than the ranks.
struct Recurrent : torch::nn::Module {
  Recurrent() {
    torch::manual_seed(4);
    layer = register_module("layer", torch::nn::Linear(4, 4));
    vector = register_parameter("vector", at::full({2}, 0.5));
  }
  at::Tensor forward(const at::Tensor& x, UnitRunner& runner) {
    return runner.run(*this, x, [&](const at::Tensor& input) {
      at::Tensor hidden = input * vector.sum() * vector.prod(); // used twice
      for (int time = 0; time < 2; ++time) {
        hidden = runner.run(*layer, hidden, [&](const at::Tensor& h) { return layer->forward(h).tanh(); });
      }
      return hidden.square().sum();
    });
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor vector;
};

Wholes reference(std::int64_t ranks) {
  Recurrent module;
  UnitRunner plain;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    (module.forward(small_input(rank), plain) / static_cast<double>(ranks)).backward();
  }
  return gradients_of(module);
}

class OddUses : public ::testing::TestWithParam<int> {};

TEST_P(OddUses, OfAUnitTwiceInOneForwardAddUpUnderEveryPolicy) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool reshard : {true, false}) {
      for (const bool again : {true, false}) {
        Recurrent module;
        const auto state = fully_shard(module,
                                       mesh,
                                       {.reshard_after_forward = reshard,
                                        .activation_checkpointing = again,
                                        .forward_prefetch = 1,
                                        .backward_prefetch = 1,
                                        .unit_policy = units_named({"layer"})});
        module.forward(small_input(mesh.rank()), *state).backward();
        expect_gradient_shards(*state, reference(mesh.size()), 1e-5);
        expect_resharded(*state);
      }
    }
  });
}

TEST_P(OddUses, OfAForwardWithoutGradModeBetweenForwardAndBackwardChangeNothing) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool reshard : {true, false}) {
      Recurrent module;
      const auto state =
          fully_shard(module, mesh, {.reshard_after_forward = reshard, .unit_policy = units_named({"layer"})});
      const at::Tensor loss = module.forward(small_input(mesh.rank()), *state);
      {
        const at::NoGradGuard no_grad;
        EXPECT_FALSE(module.forward(small_input(7), *state).requires_grad());
      }
      expect_resharded(*state);
      loss.backward();
      expect_gradient_shards(*state, reference(mesh.size()), 1e-5);
      expect_resharded(*state);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OddUses, ::testing::Values(1, 2, 4), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing

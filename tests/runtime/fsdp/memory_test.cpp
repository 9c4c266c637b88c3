// How many bytes a step holds at most: whole parameters and gradients of one unit at a time, never of all.
//
// A chain of equal layers, each a unit. W: bytes of one layer; n: layers; a rank of r holds n W / r of gradient shards
// at the end. The input is two rows, so that activations weigh little beside the parameters.

#include <torch/nn/modules/linear.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/fsdp/fully_shard.h"

#include "tests/support/allocation_peak.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"

namespace tieshard::testing {
namespace {

constexpr std::int64_t kLayers = 16;
constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kLayerBytes = kWidth * (kWidth + 1) * 4;
constexpr std::int64_t kActivationBytes = (kLayers + 4) * 2 * 2 * kWidth * 4; ///< of a layer: its input and its output
constexpr std::int64_t kTables = 8 << 10;                                     ///< flags of reductions, scalars

struct Chain : torch::nn::Module {
  Chain() {
    for (std::int64_t index = 0; index < kLayers; ++index) {
      layers.push_back(register_module(concat("layer", index), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  at::Tensor loss(UnitRunner& runner) {
    const at::Tensor input = at::ones({2, kWidth});
    return runner.run(*this, input, [&](at::Tensor x) {
      for (torch::nn::Linear& layer : layers) {
        x = runner.run(*layer, x, [&](const at::Tensor& y) { return layer->forward(y).tanh(); });
      }
      return x.sum();
    });
  }
  std::vector<torch::nn::Linear> layers;
};

struct Peaks {
  std::int64_t forward = 0;
  std::int64_t step = 0;
};

/// Of the second step: the first one makes what stays.
Peaks peaks_of(const DeviceMesh& mesh, FullyShardOptions options) {
  options.unit_policy = units_of_class<torch::nn::LinearImpl>();
  Chain chain;
  const auto state = fully_shard(chain, mesh, options);
  chain.loss(*state).backward();
  chain.zero_grad();
  const AllocationPeak peak;
  const at::Tensor loss = chain.loss(*state);
  const std::int64_t forward = peak.most();
  loss.backward();
  expect_resharded(*state);
  return {.forward = forward, .step = peak.most()};
}

std::int64_t shards_of_gradients(const DeviceMesh& mesh) {
  return kLayers * kLayerBytes / mesh.axis("dp_shard").size();
}

class Memory : public ::testing::TestWithParam<MeshGrid> {};

TEST_P(Memory, HoldsOneUnitWholeAtATime) {
  on_grid(GetParam(), [](const DeviceMesh& mesh) {
    const Peaks peaks = peaks_of(mesh, {});
    EXPECT_LE(peaks.forward, kLayerBytes + kActivationBytes + kTables);
    // whole parameters, their whole gradients, and the shards that the reduction gives
    EXPECT_LE(peaks.step, shards_of_gradients(mesh) + 2 * kLayerBytes + kActivationBytes + kTables);
  });
}

TEST_P(Memory, HoldsOneUnitMoreForEachThatIsPrefetched) {
  on_grid(GetParam(), [](const DeviceMesh& mesh) {
    const Peaks peaks = peaks_of(mesh, {.forward_prefetch = 1, .backward_prefetch = 1});
    EXPECT_GE(peaks.forward, 2 * kLayerBytes);
    EXPECT_LE(peaks.forward, 2 * kLayerBytes + kActivationBytes + kTables);
    EXPECT_LE(peaks.step, shards_of_gradients(mesh) + 3 * kLayerBytes + kActivationBytes + kTables);
  });
}

TEST_P(Memory, HoldsEveryUnitWholeWithoutReshardAfterForward) {
  on_grid(GetParam(), [](const DeviceMesh& mesh) {
    const Peaks peaks = peaks_of(mesh, {.reshard_after_forward = false});
    EXPECT_GE(peaks.forward, kLayers * kLayerBytes);
  });
}

TEST_P(Memory, OfBfloat16ComputeIsHalfForWhatIsWhole) {
  on_grid(GetParam(), [](const DeviceMesh& mesh) {
    const Peaks peaks = peaks_of(mesh, {.mp_policy = {.param_dtype = at::kBFloat16}});
    // the shards are converted for the gather
    EXPECT_LE(peaks.forward,
              kLayerBytes / 2 + kLayerBytes / 2 / mesh.axis("dp_shard").size() + kActivationBytes + kTables);
  });
}

INSTANTIATE_TEST_SUITE_P(Grids,
                         Memory,
                         ::testing::Values(MeshGrid{1, 2}, MeshGrid{1, 3}, MeshGrid{1, 4}, MeshGrid{2, 2}),
                         [](const auto& info) { return concat(info.param.replicas, "x", info.param.shards); });

} // namespace
} // namespace tieshard::testing

#include "tieshard/runtime/optim/clip_grad_norm.h"

#include <cmath>
#include <limits>

#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include <gtest/gtest.h>

#include "tests/support/batch.h"
#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

class ClipGradNorm : public ::testing::TestWithParam<int> {};

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& named : unique_parameters(module)) {
    tensors.push_back(named.tensor);
  }
  return tensors;
}

TEST_P(ClipGradNorm, EqualsTorchsOnTheUnshardedModelAndScalesAsIt) {
  const auto directory = write_tiny_llama("model", {.hidden = 10, .intermediate = 3});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Batch batch = make_batch(2, 7, 37); // the same on every rank: the mean is each one's
    for (const double max_norm : {1e-2, 1e3}) {
      const auto reference = load_whole(directory);
      causal_lm_loss_sum(reference->forward(batch.ids), batch.labels).backward();
      const double expected = torch::nn::utils::clip_grad_norm_(tensors_of(*reference), max_norm);
      const PlannedLlama loaded = load_llama(directory, mesh);
      const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
      causal_lm_loss_sum(loaded.model->forward(batch.ids), batch.labels).backward();
      EXPECT_NEAR(clip_grad_norm(*state, max_norm), expected, 1e-6 * expected);
      expect_gradient_shards(*state, gradients_of(*reference), max_norm < expected ? 1e-8 : 1e-4);
    }
  });
}

/// Gradients that are all `value`.
void fill_gradients(const FsdpState& state, double value) {
  for (const FsdpParam* parameter : state.managed()) {
    parameter->parameter().mutable_grad() = at::full_like(parameter->shard(), value);
  }
}

TEST_P(ClipGradNorm, CountsAReplicatedParameterOnce) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    fill_gradients(*state, 2.0);
    const std::int64_t elements = state->plan().total_numel(); // the 0-dim scale among them
    EXPECT_NEAR(clip_grad_norm(*state, std::numeric_limits<double>::infinity()),
                2.0 * std::sqrt(static_cast<double>(elements)),
                1e-5);
    EXPECT_EQ(net.scale.grad().item<float>(), 2.0F); // infinity only measures
  });
}

TEST_P(ClipGradNorm, ScalesTheReplicatedParameterAlikeOnEveryRank) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    fill_gradients(*state, 2.0);
    const double norm = clip_grad_norm(*state, 1.0);
    for (const FsdpParam* parameter : state->managed()) {
      expect_close(
          parameter->parameter().grad(), at::full_like(parameter->shard(), 2.0 / norm), 1e-6, parameter->fqn());
    }
    EXPECT_NEAR(clip_grad_norm(*state, 1.0), 1.0, 1e-5);
  });
}

TEST_P(ClipGradNorm, LeavesOutWhatHasNoGradient) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    EXPECT_EQ(clip_grad_norm(*state, 1.0), 0.0);
    net.scale.mutable_grad() = at::full({}, 3.0);
    EXPECT_NEAR(clip_grad_norm(*state, 10.0), 3.0, 1e-6);
    EXPECT_FALSE(net.spare.grad().defined());
  });
}

TEST_P(ClipGradNorm, OfBfloat16GradientsIsNotRoundedToBfloat16) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    net.to(at::kBFloat16);
    const auto state = shard_small_net(net, mesh);
    fill_gradients(*state, 1.0);
    EXPECT_NEAR(clip_grad_norm(*state, std::numeric_limits<double>::infinity()),
                std::sqrt(static_cast<double>(state->plan().total_numel())),
                1e-4);
  });
}

// More elements than are widened at a time, also of a third, and no multiple of that.
TEST_P(ClipGradNorm, CountsEveryElementOfALargeParameter) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    torch::nn::Linear large(torch::nn::LinearOptions(3001, 1201).bias(false));
    const auto state = fully_shard(*large, mesh);
    fill_gradients(*state, 2.0);
    EXPECT_NEAR(
        clip_grad_norm(*state, std::numeric_limits<double>::infinity()), 2.0 * std::sqrt(3001.0 * 1201.0), 1e-4);
  });
}

TEST_P(ClipGradNorm, RefusesWhatIsNotFiniteOnEveryRankAndScalesNothing) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const std::int64_t bad = mesh.size() - 1;
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh);
      fill_gradients(*state, 2.0);
      if (mesh.rank() == bad) {
        net.second->bias.mutable_grad().index_put_({0}, value);
      }
      const auto clip = [&] { clip_grad_norm(*state, 1.0); };
      if (mesh.rank() == bad) {
        expect_refusal(clip, Code::kNonFiniteGradient, {mesh.where(), "block.second.bias"});
      } else {
        expect_refusal(clip, Code::kPeerFailed, {concat("rank ", bad, " says")});
      }
      EXPECT_TRUE(at::equal(net.last->weight.grad(), at::full_like(net.last->weight, 2.0)));
    }
  });
}

TEST_P(ClipGradNorm, TellsEveryRankWhatIsNotFiniteForARunThatSkips) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const std::int64_t bad = mesh.size() - 1;
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    fill_gradients(*state, 2.0);
    if (mesh.rank() == bad) {
      net.second->bias.mutable_grad().index_put_({0}, std::numeric_limits<float>::quiet_NaN());
    }
    const ClippedNorm clipped = clip_finite_grad_norm(*state, 1.0);
    EXPECT_FALSE(std::isfinite(clipped.norm));
    ASSERT_TRUE(clipped.non_finite.has_value());
    EXPECT_EQ(clipped.non_finite->level, Level::kWarning);
    EXPECT_EQ(clipped.non_finite->code, Code::kNonFiniteGradient);
    EXPECT_EQ(clipped.non_finite->where, concat("rank ", bad, "/", mesh.size(), ", block.second.bias"));
    EXPECT_TRUE(at::equal(net.last->weight.grad(), at::full_like(net.last->weight, 2.0))); // nothing is scaled
    fill_gradients(*state, 2.0);
    const ClippedNorm finite = clip_finite_grad_norm(*state, 1.0);
    EXPECT_FALSE(finite.non_finite.has_value());
    EXPECT_GT(finite.norm, 1.0);
    EXPECT_NEAR(clip_grad_norm(*state, 1.0), 1.0, 1e-5); // it was clipped
  });
}

TEST(ClipGradNormOfHsdp, CountsEachShardOnceAndScalesAsTorchDoes) {
  for (const MeshGrid grid : {MeshGrid{2, 2}, MeshGrid{2, 1}}) {
    on_grid(grid, [](const DeviceMesh& mesh) {
      SmallNet plain_net;
      UnitRunner plain;
      for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
        (plain_net.forward(small_input(rank), plain).square().sum() / static_cast<double>(mesh.size())).backward();
      }
      std::vector<at::Tensor> with_gradient = tensors_of(plain_net);
      std::erase_if(with_gradient, [](const at::Tensor& tensor) { return !tensor.grad().defined(); });
      const double expected = torch::nn::utils::clip_grad_norm_(with_gradient, 0.01);
      SmallNet net;
      const auto state = fully_shard(net, net.units(), mesh);
      net.forward(small_input(mesh.rank()), *state).square().sum().backward();
      EXPECT_NEAR(clip_grad_norm(*state, 0.01), expected, 1e-5 * expected);
      expect_gradient_shards(*state, gradients_of(plain_net), 1e-7);
    });
  }
}

TEST(ClipGradNormOfHsdp, IsSkippedByAllReplicasAndNamesTheRankOfEach) {
  on_grid({2, 2}, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = fully_shard(net, net.units(), mesh);
    fill_gradients(*state, 2.0);
    if (state->mesh().rank() == 1) { // of each replica: they hold the same gradients
      net.second->bias.mutable_grad().index_put_({0}, std::numeric_limits<float>::infinity());
    }
    const ClippedNorm clipped = clip_finite_grad_norm(*state, 1.0);
    ASSERT_TRUE(clipped.non_finite.has_value());
    EXPECT_EQ(clipped.non_finite->where, concat("rank ", mesh.rank() < 2 ? 1 : 3, "/4, block.second.bias"));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClipGradNorm, ::testing::Values(1, 2, 3), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

TEST(ClipGradNormArguments, RefuseABoundThatIsNotAboveZeroAndGradientsThatAreNotReduced) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    for (const double bound : {-1.0, 0.0, std::nan("")}) {
      expect_refusal([&] { clip_grad_norm(*state, bound); }, Code::kWrongState, {"above 0"});
    }
    state->set_requires_gradient_sync(false);
    net.forward(small_input(0), *state).sum().backward();
    expect_refusal([&] { clip_grad_norm(*state, 1.0); }, Code::kWrongState, {"not reduced"});
  });
}

} // namespace
} // namespace tieshard::testing

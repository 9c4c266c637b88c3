// Gradient accumulation with and without communication.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/collective_log.h"
#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

at::Tensor loss_of(SmallNet& net, UnitRunner& runner, std::int64_t input, bool use_spare = false) {
  return net.forward(small_input(input), runner, use_spare).square().sum();
}

/// Mean over `ranks` of the gradients of `passes` inputs each.
Wholes reference(std::int64_t ranks, std::int64_t passes, std::int64_t spare_pass = -1) {
  SmallNet net;
  UnitRunner plain;
  for (std::int64_t input = 0; input < ranks * passes; ++input) {
    (loss_of(net, plain, input, input / ranks == spare_pass) / static_cast<double>(ranks)).backward();
  }
  return gradients_of(net);
}

class GradientAccumulation : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(GradientAccumulation, WithoutSyncGivesTheSameGradientsAndReducesOnce) {
  const auto [ranks, reshard] = GetParam();
  on_ranks(ranks, [reshard = reshard](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard});
    for (int step = 0; step < 2; ++step) {
      CollectiveLog log;
      for (std::int64_t pass = 0; pass < 3; ++pass) {
        state->set_requires_gradient_sync(pass == 2);
        loss_of(net, *state, pass * mesh.size() + mesh.rank()).backward();
        expect_resharded(*state);
        const std::vector<std::string> calls = log.take();
        const auto reductions =
            std::ranges::count_if(calls, [](const std::string& call) { return call.starts_with("reduce_scatter"); });
        EXPECT_EQ(reductions, mesh.size() > 1 && pass == 2 ? 3 : 0);
        EXPECT_EQ(net.last->weight.grad().defined(), pass == 2);
      }
      expect_gradient_shards(*state, reference(mesh.size(), 3), 3e-5);
      for (const NamedTensor& named : unique_parameters(net)) {
        named.tensor.mutable_grad().reset();
      }
    }
  });
}

TEST_P(GradientAccumulation, WithoutSyncAddsToWhatWasReducedBefore) {
  const auto [ranks, reshard] = GetParam();
  on_ranks(ranks, [reshard = reshard](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard});
    loss_of(net, *state, mesh.rank()).backward();
    const at::Tensor before = net.last->weight.grad().clone();
    state->set_requires_gradient_sync(false);
    loss_of(net, *state, mesh.size() + mesh.rank()).backward();
    EXPECT_TRUE(at::equal(net.last->weight.grad(), before)); // the sharded gradient is as it was
    state->set_requires_gradient_sync(true);
    loss_of(net, *state, 2 * mesh.size() + mesh.rank()).backward();
    expect_gradient_shards(*state, reference(mesh.size(), 3), 3e-5);
  });
}

TEST_P(GradientAccumulation, KeepsWholeUnitsWholeBetweenPassesThatAreNotTheLast) {
  const auto [ranks, reshard] = GetParam();
  on_ranks(ranks, [reshard = reshard](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard});
    CollectiveLog log;
    for (std::int64_t pass = 0; pass < 3; ++pass) {
      state->set_is_last_backward(pass == 2);
      state->set_requires_gradient_sync(pass == 2);
      loss_of(net, *state, pass * mesh.size() + mesh.rank()).backward();
      for (const auto& group : state->groups()) {
        const bool is_root = group->name().empty();
        EXPECT_EQ(group->unsharded(), pass < 2 && (is_root || !reshard)) << group->name() << " " << pass;
      }
    }
    expect_resharded(*state);
    expect_gradient_shards(*state, reference(mesh.size(), 3), 3e-5);
    if (mesh.size() > 1) {
      const std::size_t gathers = reshard ? 1 + 3 * 4 : 3; // the root once; the others for each forward and backward
      EXPECT_THAT(log.take(), ::testing::SizeIs(gathers + 3));
    }
  });
}

TEST_P(GradientAccumulation, ReducesAParameterThatOnlyAnEarlierPassUsed) {
  const auto [ranks, reshard] = GetParam();
  on_ranks(ranks, [reshard = reshard](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard});
    state->set_requires_gradient_sync(false);
    loss_of(net, *state, mesh.rank(), /*use_spare=*/true).backward();
    state->set_requires_gradient_sync(true);
    loss_of(net, *state, mesh.size() + mesh.rank()).backward();
    expect_gradient_shards(*state, reference(mesh.size(), 2, /*spare_pass=*/0), 3e-5);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         GradientAccumulation,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Bool()),
                         [](const auto& info) {
                           return concat(
                               std::get<0>(info.param), "ranks_", std::get<1>(info.param) ? "reshard" : "keep");
                         });

TEST(UnreducedGradients, AreReducedByTheNextSyncedPassAlsoInUnitsThatItDoesNotReach) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.allow_idle_units = true});
    state->set_requires_gradient_sync(false);
    loss_of(net, *state, mesh.rank()).backward();
    expect_refusal([&] { state->require_reduced_gradients(); }, Code::kWrongState, {"set_requires_gradient_sync"});
    state->set_requires_gradient_sync(true);
    state->run(net, small_input(0), [&](const at::Tensor&) { return net.scale * 0.0; }).backward();
    state->require_reduced_gradients();
    expect_gradient_shards(*state, reference(mesh.size(), 1), 1e-5);
  });
}

TEST(UnreducedGradients, AddUpInTheReduceDtype) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    // 256 + 1 is no bf16 number: adding up in bf16, or reducing the sum in it, loses the 1
    torch::nn::Linear layer(torch::nn::LinearOptions(4, 4).bias(false));
    const auto state = fully_shard(
        *layer,
        mesh,
        {.mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}, .gradient_divide_factor = 1.0});
    for (int pass = 0; pass < 2; ++pass) {
      state->set_requires_gradient_sync(pass == 1);
      const at::Tensor x = at::full({1, 4}, pass == 0 ? 256.0 : 1.0);
      state->run(*layer, x, [&](const at::Tensor& y) { return layer->forward(y); }).sum().backward();
    }
    EXPECT_EQ(layer->weight.grad().max().item<double>(), 2 * 257.0);
  });
}

TEST(UnreducedGradients, AreDroppedWithABackwardThatBreaks) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    state->set_requires_gradient_sync(false);
    loss_of(net, *state, mesh.rank()).backward();
    const at::Tensor input = small_input(mesh.rank()).requires_grad_(true) * 1.0;
    input.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a hook's mistake"); });
    EXPECT_THROW(net.forward(input, *state).sum().backward(), std::runtime_error);
    state->reshard();
    state->require_reduced_gradients(); // none are kept
    state->set_requires_gradient_sync(true);
    loss_of(net, *state, mesh.rank()).backward();
    expect_gradient_shards(*state, reference(mesh.size(), 1), 1e-5);
  });
}

} // namespace
} // namespace tieshard::testing

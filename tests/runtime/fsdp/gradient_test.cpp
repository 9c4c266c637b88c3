// Which gradients a backward pass leaves in the shards.

#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

class Gradients : public ::testing::TestWithParam<int> {};

/// Loss of the input of `rank`.
at::Tensor loss_of(SmallNet& net, UnitRunner& runner, std::int64_t rank, bool use_spare = false) {
  return net.forward(small_input(rank), runner, use_spare).square().sum();
}

/// Gradients of the sum of the losses of `ranks` inputs, each times `factor`, without sharding.
Wholes reference(std::int64_t ranks, double factor, std::int64_t spare_rank = -1) {
  SmallNet net;
  UnitRunner plain;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    (loss_of(net, plain, rank, rank == spare_rank) * factor).backward();
  }
  return gradients_of(net);
}

TEST_P(Gradients, AreTheMeanOverRanksByDefault) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    loss_of(net, *state, mesh.rank()).backward();
    expect_gradient_shards(*state, reference(mesh.size(), 1.0 / static_cast<double>(mesh.size())), 1e-5);
  });
}

TEST_P(Gradients, AreTheSumOverRanksDividedByWhatIsAsked) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const double divisor : {1.0, 4.0}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh, {.gradient_divide_factor = divisor});
      loss_of(net, *state, mesh.rank()).backward();
      expect_gradient_shards(*state, reference(mesh.size(), 1.0 / divisor), 1e-5);
    }
  });
}

TEST_P(Gradients, OfTwoBackwardPassesAddUp) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool reshard : {true, false}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard, .gradient_divide_factor = 1.0});
      loss_of(net, *state, mesh.rank()).backward();
      loss_of(net, *state, mesh.rank() + mesh.size()).backward();
      expect_gradient_shards(*state, reference(2 * mesh.size(), 1.0), 2e-5);
      expect_resharded(*state);
    }
  });
}

TEST_P(Gradients, OfTwoForwardsInOneBackwardAddUp) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool reshard : {true, false}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard, .gradient_divide_factor = 1.0});
      const at::Tensor one = loss_of(net, *state, mesh.rank());
      const at::Tensor two = loss_of(net, *state, mesh.rank() + mesh.size());
      (one + two).backward();
      expect_gradient_shards(*state, reference(2 * mesh.size(), 1.0), 2e-5);
      expect_resharded(*state);
    }
  });
}

TEST_P(Gradients, OfTwoForwardsWithABackwardEachAddUpInEitherOrder) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool first_first : {true, false}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh, {.gradient_divide_factor = 1.0});
      const at::Tensor one = loss_of(net, *state, mesh.rank());
      const at::Tensor two = loss_of(net, *state, mesh.rank() + mesh.size());
      (first_first ? one : two).backward();
      (first_first ? two : one).backward();
      expect_gradient_shards(*state, reference(2 * mesh.size(), 1.0), 2e-5);
    }
  });
}

TEST_P(Gradients, OfABackwardRepeatedOverOneGraphAreTwice) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool reshard : {true, false}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard, .gradient_divide_factor = 1.0});
      const at::Tensor loss = loss_of(net, *state, mesh.rank());
      loss.backward({}, /*retain_graph=*/true);
      expect_resharded(*state);
      loss.backward();
      expect_gradient_shards(*state, reference(mesh.size(), 2.0), 2e-5);
      expect_resharded(*state);
    }
  });
}

TEST_P(Gradients, AreAbsentForAParameterThatNoRankUsed) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    loss_of(net, *state, mesh.rank()).backward();
    EXPECT_FALSE(net.spare.grad().defined());
    EXPECT_TRUE(net.scale.grad().defined());
  });
}

TEST_P(Gradients, OfAParameterThatOneRankUsedAreThatRanks) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const std::int64_t user = mesh.size() - 1;
    const auto state = shard_small_net(net, mesh, {.gradient_divide_factor = 1.0});
    loss_of(net, *state, mesh.rank(), mesh.rank() == user).backward();
    expect_gradient_shards(*state, reference(mesh.size(), 1.0, user), 1e-5);
    EXPECT_TRUE(net.spare.grad().defined()) << mesh.where(); // on the others too: it is their shard's
  });
}

TEST_P(Gradients, StayWhenALaterBackwardDoesNotReachTheParameter) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.gradient_divide_factor = 1.0});
    loss_of(net, *state, mesh.rank(), /*use_spare=*/true).backward();
    const at::Tensor before = net.spare.grad().clone();
    loss_of(net, *state, mesh.rank()).backward();
    EXPECT_TRUE(at::equal(net.spare.grad(), before));
  });
}

TEST_P(Gradients, OfAZeroDimParameterAreSummedAndTheParameterIsOnEveryRank) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.gradient_divide_factor = 1.0});
    EXPECT_EQ(net.scale.dim(), 0);
    EXPECT_EQ(net.scale.item<float>(), 1.5F);
    loss_of(net, *state, mesh.rank()).backward();
    const at::Tensor expected = reference(mesh.size(), 1.0).at("scale");
    EXPECT_NEAR(net.scale.grad().item<double>(), expected.item<double>(), 1e-4);
  });
}

TEST_P(Gradients, LeaveAFrozenParameterAlone) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    net.second->weight.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh, {.gradient_divide_factor = 1.0});
    loss_of(net, *state, mesh.rank()).backward();
    Wholes expected = reference(mesh.size(), 1.0);
    expected["block.second.weight"] = at::Tensor();
    expect_gradient_shards(*state, expected, 1e-5);
    EXPECT_FALSE(net.second->weight.requires_grad());
  });
}

TEST_P(Gradients, ReachTheInput) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const at::Tensor plain_input = small_input(mesh.rank()).requires_grad_(true);
    SmallNet plain_net;
    UnitRunner plain;
    plain_net.forward(plain_input, plain).sum().backward();
    const at::Tensor input = small_input(mesh.rank()).requires_grad_(true);
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    net.forward(input, *state).sum().backward();
    EXPECT_TRUE(at::allclose(input.grad(), plain_input.grad(), 1e-5, 1e-6));
    expect_resharded(*state);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gradients, ::testing::Values(1, 3), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing

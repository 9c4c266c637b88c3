// An exception in the user's forward or backward leaves a state that goes on with right numbers.

#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

/// The second of the units that run throws in its forward.
struct FailingOnce : UnitRunner {
  at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) override {
    return state->run(unit, input, [&](const at::Tensor& x) {
      if (++calls == 2) {
        throw std::runtime_error("the user's mistake");
      }
      return forward(x);
    });
  }
  std::shared_ptr<FsdpState> state;
  int calls = 0;
};

at::Tensor loss_of(SmallNet& net, UnitRunner& runner, std::int64_t rank) {
  return net.forward(small_input(rank), runner).square().sum();
}

/// Mean gradients over the ranks of `passes` good passes.
Wholes reference(std::int64_t ranks, int passes) {
  SmallNet net;
  UnitRunner plain;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      (loss_of(net, plain, rank) / static_cast<double>(ranks)).backward();
    }
  }
  return gradients_of(net);
}

/// `tensor`, whose gradient throws the first time that it is computed.
at::Tensor break_backward_once(const at::Tensor& tensor, bool& broken) {
  tensor.register_hook([&broken](const at::Tensor& gradient) {
    if (!broken) {
      broken = true;
      throw std::runtime_error("a hook's mistake");
    }
    return gradient;
  });
  return tensor;
}

class Exceptions : public ::testing::TestWithParam<int> {};

TEST_P(Exceptions, InAForwardLeaveEverythingResharded) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const Wholes wholes = values_of(net);
    FailingOnce runner;
    runner.state = shard_small_net(net, mesh);
    EXPECT_THROW(loss_of(net, runner, mesh.rank()), std::runtime_error);
    expect_resharded(*runner.state);
    expect_shards(*runner.state, wholes, 0.0);
  });
}

TEST_P(Exceptions, InAForwardDoNotHideALaterChangeOfTheShards) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    FailingOnce runner;
    runner.state = shard_small_net(net, mesh);
    EXPECT_THROW(loss_of(net, runner, mesh.rank()), std::runtime_error);
    const at::NoGradGuard no_grad;
    UnitRunner plain;
    SmallNet changed;
    for (const FsdpParam* parameter : runner.state->managed()) {
      parameter->shard().mul_(0.5); // as a loader of an earlier checkpoint does
      changed.named_parameters()[parameter->fqn()].mul_(0.5);
    }
    EXPECT_TRUE(at::equal(loss_of(net, runner, 0), loss_of(changed, plain, 0)));
  });
}

TEST_P(Exceptions, InAForwardDoNotChangeTheNextStep) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    FailingOnce runner;
    runner.state = shard_small_net(net, mesh);
    EXPECT_THROW(loss_of(net, runner, mesh.rank()), std::runtime_error);
    loss_of(net, runner, mesh.rank()).backward();
    expect_gradient_shards(*runner.state, reference(mesh.size(), 1), 1e-5);
    expect_resharded(*runner.state);
  });
}

/// A backward pass that ends in an exception after the units were reduced and before the root was.
void fail_in_backward(SmallNet& net, UnitRunner& runner, std::int64_t rank) {
  bool broken = false;
  const at::Tensor input = break_backward_once(small_input(rank).requires_grad_(true) * 1.0, broken);
  const at::Tensor loss = net.forward(input, runner).square().sum();
  EXPECT_THROW(loss.backward(), std::runtime_error);
}

void zero_grad(const torch::nn::Module& module) {
  for (const NamedTensor& named : unique_parameters(module)) {
    named.tensor.mutable_grad().reset();
  }
}

TEST_P(Exceptions, InABackwardDoNotChangeTheNextStep) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool by_hand : {true, false}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh);
      loss_of(net, *state, mesh.rank()).backward(); // gradients of an earlier step, to be zeroed with the rest
      fail_in_backward(net, *state, mesh.rank());
      if (by_hand) {
        state->reshard();
        expect_resharded(*state);
      }
      zero_grad(net);
      loss_of(net, *state, mesh.rank()).backward();
      loss_of(net, *state, mesh.rank()).backward();
      expect_gradient_shards(*state, reference(mesh.size(), 2), 2e-5);
      expect_resharded(*state);
    }
  });
}

TEST_P(Exceptions, InABackwardLeaveNoGradientThatAStepCouldUse) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    loss_of(net, *state, mesh.rank()).backward();
    fail_in_backward(net, *state, mesh.rank());
    state->reshard(); // what the guarded optimizer does before it steps
    for (const NamedTensor& named : unique_parameters(net)) {
      EXPECT_FALSE(named.tensor.grad().defined()) << named.fqn;
    }
    loss_of(net, *state, mesh.rank()).backward();
    expect_gradient_shards(*state, reference(mesh.size(), 1), 1e-5);
  });
}

TEST_P(Exceptions, InABackwardLetTheSameGraphBeTriedAgain) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    bool broken = false;
    const at::Tensor input = break_backward_once(small_input(mesh.rank()).requires_grad_(true) * 1.0, broken);
    const at::Tensor loss = net.forward(input, *state).square().sum();
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
    zero_grad(net);
    loss.backward();
    expect_gradient_shards(*state, reference(mesh.size(), 1), 1e-5);
    expect_resharded(*state);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exceptions, ::testing::Values(1, 2), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing

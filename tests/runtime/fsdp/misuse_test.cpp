// What a user's module or training code may do wrong, and what would then be computed wrong without a word: each is
// refused by name, or does what is right.

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

class Misuse : public ::testing::TestWithParam<int> {};

TEST_P(Misuse, AUnitThatChangesItsInputInPlaceIsRefused) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    const auto scaled = [&](const at::Tensor& x) {
      return state->run(*net.block, x, [](const at::Tensor& y) { return at::Tensor(y).mul_(3) + 1; });
    };
    const at::Tensor leaf = small_input(0).requires_grad_(true);
    expect_refusal([&] { scaled(leaf * 2); }, Code::kWrongState, {"changed its input in place", "block", "input 0"});
    expect_resharded(*state);
    EXPECT_NO_THROW(scaled(small_input(0))); // no gradient goes through it
  });
}

TEST_P(Misuse, ACheckpointedUnitMayNotChangeAnyInput) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.activation_checkpointing = true});
    expect_refusal(
        [&] { state->run(*net.block, small_input(0), [](const at::Tensor& y) { return at::Tensor(y).mul_(3) + 1; }); },
        Code::kWrongState,
        {"changed its input in place", "block"});
  });
}

TEST_P(Misuse, AUnitThatRunsInsideItselfIsRefused) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    expect_refusal(
        [&] {
          state->run(*net.block, small_input(0), [&](const at::Tensor& x) {
            return state->run(*net.block, x, [](const at::Tensor& y) { return y + 1; });
          });
        },
        Code::kWrongState,
        {"runs inside itself", "block"});
    EXPECT_NO_THROW(net.forward(small_input(0), *state));
  });
}

TEST_P(Misuse, AnOutputThatIsTheUnitsOwnParameterIsRefused) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    const auto give = [&](torch::nn::Module& unit, const at::Tensor& output) {
      state->run(unit, small_input(0), [&](const at::Tensor&) { return output; });
    };
    const auto view = [&] {
      state->run(*net.first, small_input(0), [&](const at::Tensor&) { return net.first->weight.narrow(0, 0, 1); });
    };
    expect_refusal(view, Code::kWrongState, {"its own parameter", "block.first.weight", "clone()"});
    expect_refusal([&] { give(net, net.scale); }, Code::kWrongState, {"root unit", "scale"});
    EXPECT_NO_THROW(
        state->run(*net.first, small_input(0), [&](const at::Tensor&) { return net.first->weight.clone(); }));
  });
}

/// A user's own checkpoint: computes the unit in a backward of its own, inside the outer one.
struct OwnCheckpoint : torch::autograd::Function<OwnCheckpoint> {
  using Compute = std::function<at::Tensor(const at::Tensor&)>;

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Compute* compute) {
    context->save_for_backward({x});
    context->saved_data["compute"] = reinterpret_cast<std::int64_t>(compute);
    const at::NoGradGuard no_grad;
    return (*compute)(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor x = context->get_saved_variables().front().detach().requires_grad_(true);
    const auto* const compute = reinterpret_cast<const Compute*>(context->saved_data["compute"].toInt());
    const at::AutoGradMode with_gradients(true);
    (*compute)(x).backward(gradients.front());
    return {x.grad(), at::Tensor()};
  }
};

/// The net with `first` computed again in the backward by the user's own means.
at::Tensor checkpointed_forward(SmallNet& net, UnitRunner& runner, const OwnCheckpoint::Compute& first) {
  return runner.run(net, small_input(0), [&](const at::Tensor& input) {
    const at::Tensor hidden = runner.run(*net.block, input * net.scale, [&](const at::Tensor& h) {
      return net.second->forward(OwnCheckpoint::apply(h, &first)).tanh();
    });
    return net.last->forward(hidden);
  });
}

TEST_P(Misuse, ABackwardInsideABackwardLosesNoGradient) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto gradients = [](SmallNet& net, UnitRunner& runner) {
      const OwnCheckpoint::Compute first = [&](const at::Tensor& x) {
        return runner.run(*net.first, x, [&](const at::Tensor& y) { return net.first->forward(y).tanh(); });
      };
      checkpointed_forward(net, runner, first).square().sum().backward();
    };
    SmallNet expected;
    UnitRunner plain;
    gradients(expected, plain);
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    gradients(net, *state);
    expect_gradient_shards(*state, gradients_of(expected), 1e-6);
    expect_resharded(*state);
  });
}

TEST_P(Misuse, AnExceptionInAForwardAlsoFreesUnitsThatAreKeptForTheBackward) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = false});
    const auto failing = [&] {
      state->run(net, small_input(0), [&](const at::Tensor& x) -> at::Tensor {
        state->run(*net.block, x * net.scale, [&](const at::Tensor& h) {
          return state->run(*net.first, h, [&](const at::Tensor& y) { return net.first->forward(y); });
        });
        throw std::runtime_error("the user's mistake");
      });
    };
    EXPECT_THROW(failing(), std::runtime_error);
    expect_resharded(*state);
  });
}

TEST_P(Misuse, KeptGradientsCanBeGivenUp) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet expected;
    UnitRunner plain;
    expected.forward(small_input(1), plain).square().sum().backward();
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    state->set_requires_gradient_sync(false);
    net.forward(small_input(0), *state).square().sum().backward();
    state->drop_unreduced_gradients();
    EXPECT_NO_THROW(state->require_reduced_gradients());
    state->set_requires_gradient_sync(true);
    net.forward(small_input(1), *state).square().sum().backward();
    expect_gradient_shards(*state, gradients_of(expected), 1e-5);
  });
}

TEST_P(Misuse, TheStateMayGoOutOfScopeBeforeTheBackward) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet expected;
    UnitRunner plain;
    expected.forward(small_input(0), plain).square().sum().backward();
    SmallNet net;
    auto state = shard_small_net(net, mesh);
    const at::Tensor loss = net.forward(small_input(0), *state).square().sum();
    const std::weak_ptr<FsdpState> watched = state;
    state.reset();
    loss.backward();
    const Wholes wholes = gradients_of(expected);
    const at::Tensor whole = wholes.at("last.weight");
    EXPECT_EQ(net.last->weight.grad().sizes(), net.last->weight.sizes());
    EXPECT_LT(net.last->weight.size(1) * mesh.size(), 9);
    EXPECT_LE(
        (net.last->weight.grad() - whole.narrow(1, net.last->weight.size(1) * mesh.rank(), net.last->weight.size(1)))
            .abs()
            .max()
            .item<double>(),
        1e-5);
  });
}

TEST_P(Misuse, TwoTensorsOverOneMemoryAreNoTieAndAreRefused) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    net.second->weight.set_data(net.second->bias.detach().expand({6, 6}).contiguous());
    net.spare.set_data(net.second->weight.detach().view({-1}).narrow(0, 3, 5)); // in the middle of it
    expect_refusal([&] { shard_small_net(net, mesh); },
                   Code::kTieNotShared,
                   {"block.second.weight and spare", "two tensors", "register_parameter"});
    net.spare.set_data(at::ones({5}));
    const at::Tensor fused = at::ones({6, 9}); // columns of one matrix share no bytes
    net.first->weight.set_data(fused.narrow(1, 0, 4));
    net.spare.set_data(fused.select(1, 8).narrow(0, 0, 5));
    EXPECT_NO_THROW(shard_small_net(net, mesh));
  });
}

TEST_P(Misuse, ParametersThatAreNotContiguousAreGatheredAsTheyAre) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    struct Transposed : torch::nn::Module {
      Transposed() : weight(register_parameter("weight", at::arange(12, at::kFloat).view({4, 3, 1}).transpose(0, 1))) {}
      at::Tensor weight;
    };
    Transposed module;
    const at::Tensor whole = module.weight.detach().clone();
    const auto state = fully_shard(module, mesh);
    state->unshard();
    EXPECT_TRUE(at::equal(module.weight.detach(), whole));
  });
}

TEST_P(Misuse, ARefusedModuleIsAsItWasAndCanBeShardedAfterAll) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const Wholes before = values_of(net);
    const auto refused = [&](const FullyShardOptions& options, Code code, const std::vector<std::string>& parts) {
      expect_refusal([&] { fully_shard(net, net.units(), mesh, options); }, code, parts);
      for (const NamedTensor& named : unique_parameters(net)) {
        EXPECT_EQ(named.tensor.sizes(), before.at(named.fqn).sizes()) << named.fqn;
      }
    };
    refused({.reshard_after_forward = std::int64_t{77}}, Code::kBadRankCount, {"expected a divisor of", "got 77"});
    refused({.per_unit = {{"block", {.reshard_after_forward = std::int64_t{77}}}}}, Code::kBadRankCount, {"got 77"});
    refused({.gradient_divide_factor = 0.0}, Code::kWrongState, {"gradient_divide_factor", "got 0"});
    refused({.forward_prefetch = -1}, Code::kWrongState, {"forward_prefetch", "got -1"});
    refused({.backward_prefetch = -3}, Code::kWrongState, {"backward_prefetch", "got -3"});
    refused({.mp_policy = {.param_dtype = at::kLong}}, Code::kWrongState, {"param_dtype", "got Long"});
    refused({.per_unit = {{"", {.reshard_after_forward = true}}}}, Code::kWrongState, {"root"});
    refused({.per_unit = {{"", {.activation_checkpointing = true}}}}, Code::kWrongState, {"root"});
    EXPECT_NO_THROW(fully_shard(net, net.units(), mesh, {}));
  });
}

TEST_P(Misuse, AReshardNumberIsLookedAtAlsoWhereTheRootIsTheOnlyUnit) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    expect_refusal(
        [&] { fully_shard(net, mesh, {.reshard_after_forward = std::int64_t{77}}); }, Code::kBadRankCount, {"got 77"});
  });
}

TEST_P(Misuse, ComplexParametersAndSparseGradientsAreRefusedByName) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    torch::nn::Module complex;
    complex.register_parameter("phase", at::ones({4}, at::kComplexFloat));
    expect_refusal([&] { fully_shard(complex, mesh); }, Code::kWrongState, {"phase", "ComplexFloat"});
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(8, 4).sparse(true));
    const auto state = fully_shard(*table, mesh);
    const at::Tensor output =
        state->run(*table, at::arange(3, at::kLong), [&](const at::Tensor& ids) { return table->forward(ids); });
    expect_refusal([&] { output.sum().backward(); }, Code::kWrongState, {"weight", "sparse"});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Misuse, ::testing::Values(1, 2), ::testing::PrintToStringParamName());

} // namespace
} // namespace tieshard::testing

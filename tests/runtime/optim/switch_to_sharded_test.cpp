// An optimizer that was built, and stepped, before fully_shard: it goes on with the numbers of one that was never
// sharded.

#include "tieshard/runtime/optim/switch_to_sharded.h"

#include <functional>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/optim/optimizer_state.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tied_module.h"

namespace tieshard::testing {
namespace {

namespace optim = torch::optim;
using Made = std::unique_ptr<optim::Optimizer>;
using Maker = std::function<Made(const std::vector<at::Tensor>&)>;

struct Kind {
  const char* name;
  Maker make;
};

std::vector<Kind> kinds() {
  return {
      {"SGD",
       [](const auto& held) { return std::make_unique<optim::SGD>(held, optim::SGDOptions(0.002).momentum(0.9)); }},
      {"Adam",
       [](const auto& held) { return std::make_unique<optim::Adam>(held, optim::AdamOptions(0.05).amsgrad(true)); }},
      {"AdamW", [](const auto& held) { return std::make_unique<optim::AdamW>(held, optim::AdamWOptions(0.05)); }},
      {"FusedAdamW", [](const auto& held) { return std::make_unique<FusedAdamW>(held, optim::AdamWOptions(0.05)); }},
      {"Adagrad", [](const auto& held) { return std::make_unique<optim::Adagrad>(held, optim::AdagradOptions(0.05)); }},
      {"RMSprop",
       [](const auto& held) {
         return std::make_unique<optim::RMSprop>(held, optim::RMSpropOptions(0.01).centered(true).momentum(0.9));
       }},
  };
}

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& named : unique_parameters(module)) {
    tensors.push_back(named.tensor);
  }
  return tensors;
}

/// The same batch on every rank, so that the mean over ranks is the gradient of one.
template <typename Optimizer>
void step(SmallNet& net, UnitRunner& runner, Optimizer& optimizer, int batch) {
  optimizer.zero_grad();
  net.forward(small_input(batch), runner, /*use_spare=*/true).square().sum().backward();
  optimizer.step();
}

constexpr int kBefore = 2; // steps, of kAll
constexpr int kAll = 5;

Wholes never_sharded(const Maker& make) {
  SmallNet net;
  UnitRunner plain;
  const Made optimizer = make(tensors_of(net));
  for (int batch = 0; batch < kAll; ++batch) {
    step(net, plain, *optimizer, batch);
  }
  return values_of(net);
}

/// Steps in a guarded optimizer from kBefore on, and compares.
void expect_the_rest(SmallNet& net, FsdpState& state, Made early, const OptimizerGuard& guard, const Wholes& expected) {
  auto optimizer = guard.adopt(std::move(early));
  for (int batch = kBefore; batch < kAll; ++batch) {
    step(net, state, optimizer, batch);
  }
  expect_shards(state, expected, state.mesh().size() == 1 ? 0.0 : 1e-6);
}

class Switch : public ::testing::TestWithParam<int> {};

TEST_P(Switch, KeepsTheNumbersOfAnOptimizerThatSteppedBeforeFullyShard) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const Kind& kind : kinds()) {
      SCOPED_TRACE(kind.name);
      const Wholes expected = never_sharded(kind.make);
      SmallNet net;
      UnitRunner plain;
      Made early = kind.make(tensors_of(net));
      for (int batch = 0; batch < kBefore; ++batch) {
        step(net, plain, *early, batch);
      }
      early->zero_grad();
      const auto state = shard_small_net(net, mesh);
      expect_the_rest(net, *state, std::move(early), OptimizerGuard(state), expected);
    }
  });
}

TEST_P(Switch, IsDoneOnceHoweverOftenItIsAskedFor) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    UnitRunner plain;
    optim::AdamW optimizer(tensors_of(net), optim::AdamWOptions(0.05));
    step(net, plain, optimizer, 0);
    optimizer.zero_grad();
    const auto state = shard_small_net(net, mesh);
    const OptimizerGuard guard(state);
    guard.switch_to_sharded(optimizer);
    guard.switch_to_sharded(optimizer);
    for (const FsdpParam* parameter : state->managed()) {
      const auto& kept = static_cast<const optim::AdamWParamState&>(
          *optimizer.state().at(parameter->parameter().unsafeGetTensorImpl()));
      EXPECT_EQ(kept.exp_avg().sizes(), parameter->shard().sizes()) << parameter->fqn();
      EXPECT_EQ(kept.exp_avg_sq().sizes(), parameter->shard().sizes()) << parameter->fqn();
      EXPECT_EQ(kept.step(), 1) << parameter->fqn();
    }
  });
}

/// The same net with new tensors of the same values under the names of `last`.
void replace_last(SmallNet& net) {
  torch::nn::Linear other(6, 3);
  const at::NoGradGuard no_grad;
  other->weight.copy_(net.last->weight);
  other->bias.copy_(net.last->bias);
  net.last = net.replace_module("last", other);
}

TEST_P(Switch, PutsTheModulesTensorsInThePlaceOfThoseThatTheOptimizerWasBuiltOver) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const Maker make = kinds()[2].make;
    const Wholes expected = never_sharded(make);
    SmallNet net;
    UnitRunner plain;
    Made early = make(tensors_of(net));
    const std::vector<NamedTensor> originals = named_parameters(net);
    for (int batch = 0; batch < kBefore; ++batch) {
      step(net, plain, *early, batch);
    }
    early->zero_grad();
    replace_last(net);
    const auto state = shard_small_net(net, mesh);
    const OptimizerGuard guard(state);
    expect_refusal([&] { guard.require_admissible(*early); },
                   Code::kOptimizerParameter,
                   {"[3, 6]", "foreign", "last.weight (no group)", "last.bias (no group)"});
    guard.switch_to_sharded(*early, originals);
    expect_the_rest(net, *state, std::move(early), guard, expected);
  });
}

TEST_P(Switch, OfBothOriginalsOfATieLeavesAnAliasThatIsRefused) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const at::Tensor head = at::randn({11, 6}).requires_grad_(true); // before it was tied
    std::vector<at::Tensor> held = tensors_of(module);
    held.push_back(head);
    auto early = std::make_unique<optim::SGD>(held, 0.1);
    const auto state = fully_shard(module, {{"", &module}}, plan_of(module, mesh), mesh);
    expect_refusal([&] { OptimizerGuard(state).adopt(std::move(early), {{"lm_head.weight", head}}); },
                   Code::kOptimizerParameter,
                   {"lm_head.weight (group 0, slot 3): an alias", "it is embed_tokens.weight"});
  });
}

TEST_P(Switch, OfTwoWeightsThatBecameOneIsRefusedWhereStateWouldBeLost) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const at::Tensor head = at::randn({11, 6}).requires_grad_(true); // before it was tied
    std::vector<at::Tensor> held = tensors_of(module);
    held.push_back(head);
    optim::AdamW early(held, optim::AdamWOptions(0.1));
    module.forward(at::arange(4)).sum().backward();
    head.mutable_grad() = at::full({11, 6}, 100.0);
    early.step();
    early.zero_grad();
    const auto mean_of = [&](const at::Tensor& tensor) {
      return dynamic_cast<const optim::AdamWParamState&>(*early.state().at(tensor.unsafeGetTensorImpl())).exp_avg();
    };
    const at::Tensor embedding = mean_of(module.embed_tokens->weight).clone();
    const at::Tensor heads = mean_of(head).clone();
    const auto state = fully_shard(module, {{"", &module}}, plan_of(module, mesh), mesh);
    const OptimizerGuard guard(state);
    expect_refusal([&] { guard.switch_to_sharded(early, {{"lm_head.weight", head}}); },
                   Code::kOptimizerParameter,
                   {"lm_head.weight (group 0, slot 3)", "is embed_tokens.weight now", "would be lost"});
    EXPECT_TRUE(at::equal(mean_of(module.embed_tokens->weight), embedding)) << "unchanged, as it was whole";
    EXPECT_TRUE(at::equal(mean_of(head), heads));
    early.param_groups()[0].params().pop_back(); // the remedy that the message names
    early.state().erase(head.unsafeGetTensorImpl());
    guard.switch_to_sharded(early, {{"lm_head.weight", head}});
    EXPECT_NO_THROW(guard.require_admissible(early));
    const ShardedParameter& spec = state->managed().front()->spec();
    const ChunkRange range = state->plan().range(spec, mesh.rank());
    EXPECT_TRUE(at::equal(mean_of(module.embed_tokens->weight), embedding.narrow(spec.dim, range.offset, range.size)));
  });
}

/// State as a user's own optimizer may keep it.
struct OwnState : optim::OptimizerCloneableParamState<OwnState> {
  at::Tensor average;
};

struct OwnMomentState : OwnState, MomentState {
  StateFields fields() override {
    return {.moments = {{"average", &average}}, .counters = {}};
  }
};

class SwitchOfOwnState : public ::testing::Test {
 protected:
  /// An SGD over the net with `kept` as the state of last.weight, then sharded over `mesh`.
  void make(std::unique_ptr<OwnState> kept, at::IntArrayRef shape, const DeviceMesh& mesh) {
    kept->average = at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
    optimizer = std::make_unique<optim::SGD>(tensors_of(net), 0.1);
    optimizer->state()[net.last->weight.unsafeGetTensorImpl()] = std::move(kept);
    state = shard_small_net(net, mesh);
  }

  SmallNet net;
  Made optimizer;
  std::shared_ptr<FsdpState> state;
};

TEST_F(SwitchOfOwnState, CutsItWhenItsClassSaysWhatItsMomentsAre) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    make(std::make_unique<OwnMomentState>(), {3, 6}, mesh);
    OptimizerGuard(state).switch_to_sharded(*optimizer);
    const auto& kept = dynamic_cast<const OwnState&>(*optimizer->state().at(net.last->weight.unsafeGetTensorImpl()));
    const at::Tensor whole = at::arange(18, at::kFloat).view({3, 6});
    EXPECT_TRUE(at::equal(kept.average, whole.narrow(1, 3 * mesh.rank(), 3)));
  });
}

TEST_F(SwitchOfOwnState, RefusesAClassThatIsNotKnown) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    make(std::make_unique<OwnState>(), {3, 6}, mesh);
    expect_refusal([&] { OptimizerGuard(state).adopt(std::move(optimizer)); },
                   Code::kOptimizerParameter,
                   {"last.weight (group 0, slot", "from before fully_shard", "MomentState"});
  });
}

TEST_F(SwitchOfOwnState, RefusesAMomentOfAnotherShapeAndLeavesTheOptimizerAsItWas) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    make(std::make_unique<OwnMomentState>(), {6, 3}, mesh);
    auto& other = optimizer->state()[net.last->bias.unsafeGetTensorImpl()];
    auto whole = std::make_unique<OwnMomentState>();
    whole->average = at::ones({3});
    other = std::move(whole);
    expect_refusal([&] { OptimizerGuard(state).switch_to_sharded(*optimizer); },
                   Code::kOptimizerParameter,
                   {"last.weight", "expected [3, 6] or [3, 3], got [6, 3]"});
    EXPECT_EQ(dynamic_cast<const OwnState&>(*other).average.sizes(), at::IntArrayRef({3}));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Switch, ::testing::Values(1, 2, 3), ::testing::PrintToStringParamName());

} // namespace
} // namespace tieshard::testing

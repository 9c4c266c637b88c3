// What the guard admits; tests/issues/issue_3821_test.cpp holds what it refuses, by the reported failure.

#include "tieshard/runtime/optim/optimizer_guard.h"

#include <cmath>

#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tied_module.h"

namespace tieshard::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& named : unique_parameters(module)) {
    tensors.push_back(named.tensor);
  }
  return tensors;
}

class Guard : public ::testing::TestWithParam<int> {};

TEST_P(Guard, BuildsOverEachTrainableParameterOnceInRegistrationOrder) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    module.body->bias.set_requires_grad(false);
    const auto state = fully_shard(module, {{"", &module}}, plan_of(module, mesh), mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.1));
    ASSERT_EQ(optimizer.raw().param_groups().size(), 1U);
    const std::vector<at::Tensor>& held = optimizer.raw().param_groups().front().params();
    ASSERT_EQ(held.size(), 2U);
    EXPECT_TRUE(held[0].is_same(module.embed_tokens->weight));
    EXPECT_TRUE(held[1].is_same(module.body->weight));
  });
}

TEST_P(Guard, StepsOnShardsAlsoAfterAForwardWithoutABackward) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet expected_net;
    UnitRunner plain;
    SGD reference(tensors_of(expected_net), SGDOptions(0.1));
    expected_net.forward(small_input(0), plain).sum().backward();
    reference.step();
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.1));
    net.forward(small_input(0), *state).sum().backward();
    net.forward(small_input(1), *state); // a look at another batch: the root stays whole after it
    optimizer.step();
    expect_resharded(*state);
    expect_shards(*state, values_of(expected_net), 1e-6);
  });
}

TEST_P(Guard, ZeroGradKeepsOrDropsTheGradientTensors) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.1));
    net.forward(small_input(0), *state).sum().backward();
    optimizer.zero_grad(/*set_to_none=*/false);
    EXPECT_TRUE(at::equal(net.scale.grad(), at::zeros({})));
    optimizer.zero_grad();
    EXPECT_FALSE(net.scale.grad().defined());
  });
}

TEST_P(Guard, ReportsTheGroupAndTheSlotOfEachParameter) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const auto state = fully_shard(module, {{"body", module.body.get()}}, plan_of(module, mesh), mesh);
    module.body->bias.set_requires_grad(false);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{module.body->weight, module.body->bias});
    groups.emplace_back(std::vector<at::Tensor>{module.embed_tokens->weight, at::ones({2, 2})});
    const SGD optimizer(groups, SGDOptions(0.1));
    const std::vector<SlotReport> report = OptimizerGuard(state).report(optimizer);
    ASSERT_EQ(report.size(), 4U);
    EXPECT_EQ(report[0].kind, SlotKind::kManaged);
    EXPECT_EQ(report[0].name, "body.weight");
    EXPECT_EQ(report[1].kind, SlotKind::kFrozen);
    EXPECT_EQ(report[1].slot, 1U);
    EXPECT_EQ(report[2].kind, SlotKind::kUnmanaged);
    EXPECT_EQ(report[2].name, "embed_tokens.weight");
    EXPECT_EQ(report[2].group, 1U);
    EXPECT_EQ(report[3].kind, SlotKind::kForeign);
    EXPECT_EQ(report[3].name, "(unknown), shape [2, 2]");
  });
}

TEST_P(Guard, SeesThatAParameterOfTheOptimizerIsNoLongerTheModules) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.1));
    EXPECT_NO_THROW(optimizer.step());
    net.replace_module("last", torch::nn::Linear(6, 3));
    expect_refusal([&] { optimizer.step(); },
                   Code::kOptimizerParameter,
                   {"last.weight (group 0, slot",
                    "last.bias (group 0, slot",
                    "stale: after fully_shard",
                    "last.weight (no group)"});
  });
}

TEST_P(Guard, SeesAParameterThatIsListedTwice) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    const OptimizerGuard guard(state);
    expect_refusal([&] { guard.assert_all_managed({net.scale, net.spare, net.scale}); },
                   Code::kOptimizerParameter,
                   {"scale (group 0, slot 2)", "stepped twice"});
    auto optimizer = guard.build<SGD>(SGDOptions(0.1));
    expect_refusal([&] { optimizer.add_param_group(torch::optim::OptimizerParamGroup({net.scale})); },
                   Code::kOptimizerParameter,
                   {"scale", "stepped twice"});
  });
}

TEST_P(Guard, AdmitsWhatIsRegisteredWithIt) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    const at::Tensor extra = at::ones({2}).requires_grad_(true);
    OptimizerGuard guard(state);
    EXPECT_THROW(guard.assert_all_managed({extra}), UsageError);
    guard.register_managed({{"extra", extra}});
    EXPECT_NO_THROW(guard.assert_all_managed({extra}));
    EXPECT_EQ(guard.build<SGD>(SGDOptions(0.1)).raw().param_groups().front().params().size(), 9U);
  });
}

TEST_P(Guard, AddsAGroupOfManagedParametersAndStepsOnIt) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    net.spare.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.5));
    net.spare.set_requires_grad(true); // unfrozen later
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({net.spare}));
    net.forward(small_input(0), *state, /*use_spare=*/true).sum().backward();
    optimizer.step();
    EXPECT_TRUE(at::allclose(net.spare.detach(), at::full_like(net.spare, 1.0 - 0.5 * 9))); // used by 3 x 3 outputs
  });
}

TEST_P(Guard, AdoptsAnOptimizerThatHasSteppedOnShards) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto stepped = std::make_unique<torch::optim::AdamW>(tensors_of(net), torch::optim::AdamWOptions(0.1));
    net.forward(small_input(0), *state, /*use_spare=*/true).sum().backward();
    stepped->step();
    EXPECT_NO_THROW(OptimizerGuard(state).adopt(std::move(stepped)).step());
  });
}

TEST_P(Guard, BuildsAnOptimizerWhoseStateIsMadeAtOnceAlsoWhileParametersAreWhole) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    net.forward(small_input(0), *state); // the root stays whole after it
    auto optimizer = OptimizerGuard(state).build<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1));
    net.forward(small_input(0), *state).sum().backward();
    EXPECT_NO_THROW(optimizer.step());
  });
}

TEST_P(Guard, StepRefusesWhatIsTrainableAndInNoGroup) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    net.spare.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.5));
    net.spare.set_requires_grad(true); // unfrozen later
    const at::Tensor late = net.last->register_parameter("late", at::ones({2}));
    expect_refusal([&] { optimizer.step(); },
                   Code::kOptimizerParameter,
                   {"spare (no group)", "never be trained", "last.late (no group): not managed"});
    late.set_requires_grad(false);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({net.spare}));
    EXPECT_NO_THROW(optimizer.step());
  });
}

TEST_P(Guard, DropsFrozenParametersWithTheirState) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
    net.forward(small_input(0), *state, /*use_spare=*/true).sum().backward();
    optimizer.step();
    net.spare.set_requires_grad(false);
    expect_refusal([&] { optimizer.step(); }, Code::kOptimizerParameter, {"spare", "frozen", "drop_frozen"});
    const std::size_t before = optimizer.raw().state().size();
    optimizer.drop_frozen();
    EXPECT_EQ(optimizer.raw().state().size(), before - 1);
    const at::Tensor kept = net.spare.detach().clone();
    EXPECT_NO_THROW(optimizer.step());
    EXPECT_TRUE(at::equal(net.spare, kept));
    EXPECT_EQ(optimizer.report().size(), before - 1);
  });
}

TEST_P(Guard, ReportsIdentityAndShapesBeforeAndAfterSharding) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const c10::TensorImpl* const weight = module.embed_tokens->weight.unsafeGetTensorImpl(); // before
    const auto state = fully_shard(module, {{"", &module}}, plan_of(module, mesh), mesh);
    const SGD optimizer(module.parameters(), SGDOptions(0.1));
    const std::vector<SlotReport> report = OptimizerGuard(state).report(optimizer);
    ASSERT_EQ(report.size(), 4U);
    EXPECT_EQ(report[0].held, weight);
    EXPECT_EQ(report[0].current, weight);
    EXPECT_EQ(report[0].whole, Shape({11, 6}));
    EXPECT_EQ(report[0].local, Shape({11, 6 / mesh.size()}));
    EXPECT_EQ(report[3].kind, SlotKind::kAlias);
    EXPECT_EQ(report[3].name, "lm_head.weight");
    EXPECT_EQ(report[3].held, weight);
    const std::string local = to_string(report[0].local);
    EXPECT_THAT(
        to_text(report),
        ::testing::HasSubstr("group 0 slot 0  embed_tokens.weight  managed  the same object  [11, 6] -> " + local));
    EXPECT_THAT(to_text(report), ::testing::HasSubstr("group 0 slot 3  lm_head.weight  alias  the same object"));
  });
}

TEST_P(Guard, RefusesToStepWhileGradientsAreKeptThatWereNotReduced) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    OptimizerGuard guard(state);
    auto optimizer = guard.build<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
    const Wholes before = values_of(net);
    state->set_requires_gradient_sync(false);
    net.forward(small_input(mesh.rank()), *state).square().sum().backward();
    expect_refusal([&] { optimizer.step(); }, Code::kWrongState, {"set_requires_gradient_sync"});
    for (const auto& [name, value] : values_of(net)) {
      EXPECT_TRUE(at::equal(value, before.at(name))) << name;
    }
    state->set_requires_gradient_sync(true);
    net.forward(small_input(mesh.rank()), *state).square().sum().backward();
    optimizer.step();
    EXPECT_FALSE(at::equal(net.last->weight, before.at("last.weight")));
  });
}

TEST_P(Guard, AParameterFrozenWhileGradientsAreKeptDoesNotBlockTheOptimizer) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
    state->set_requires_gradient_sync(false);
    net.forward(small_input(0), *state).sum().backward();
    net.first->weight.set_requires_grad(false);
    net.first->bias.set_requires_grad(false);
    net.last->bias.set_requires_grad(false);
    optimizer.drop_frozen();
    state->set_requires_gradient_sync(true);
    net.forward(small_input(0), *state).sum().backward();
    EXPECT_NO_THROW(optimizer.step());
    net.first->weight.set_requires_grad(true); // what was kept of it does not come back
    net.first->bias.set_requires_grad(true);
    EXPECT_FALSE(net.first->weight.grad().defined());
  });
}

TEST_P(Guard, AWholeGradientOnAShardIsRefusedByTheOptimizer) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
    state->unshard();
    UnitRunner plain;
    net.forward(small_input(0), plain).sum().backward(); // by hand: nothing reduces it
    state->reshard();
    if (mesh.size() == 1) {
      EXPECT_NO_THROW(optimizer.step());
    } else {
      expect_refusal([&] { optimizer.step(); },
                     Code::kOptimizerParameter,
                     {"last.weight", "gradient", "expected", "got [3, 6]", "state->run"});
    }
  });
}

TEST_P(Guard, WhatIsRefusedForAModuleThatChangedDoesNotRecommendAnotherOptimizer) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.1));
    const auto fix_of = [&] {
      try {
        optimizer.step();
      } catch (const UsageError& error) {
        return error.diagnostic().fix;
      }
      return std::string("nothing was thrown");
    };
    net.spare.set_requires_grad(false);
    EXPECT_THAT(fix_of(), ::testing::HasSubstr("OptimizerGuard(model).build"));
    net.replace_module("last", torch::nn::Linear(6, 3));
    EXPECT_THAT(fix_of(), ::testing::HasSubstr("another optimizer alone would be refused too"));
  });
}

TEST_P(Guard, ParametersOfARemovedModuleAreStaleAndNobodyElseMissesThem) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<SGD>(SGDOptions(0.1));
    net.unregister_module("last");
    expect_refusal([&] { optimizer.step(); }, Code::kOptimizerParameter, {"last.weight (group 0, slot", "stale"});
    EXPECT_EQ(OptimizerGuard(state).build<SGD>(SGDOptions(0.1)).raw().param_groups().front().params().size(), 6U);
    EXPECT_NO_THROW(OptimizerGuard(state).adopt(std::make_unique<SGD>(tensors_of(net), 0.1)));
  });
}

TEST_P(Guard, ARefusedAdoptLeavesTheOptimizerToItsOwnerWhoDropsWhatIsFrozen) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    UnitRunner plain;
    auto early = std::make_unique<torch::optim::AdamW>(tensors_of(net), torch::optim::AdamWOptions(0.1));
    net.forward(small_input(0), plain, /*use_spare=*/true).sum().backward();
    early->step();
    early->zero_grad();
    net.spare.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh);
    const OptimizerGuard guard(state);
    expect_refusal([&] { guard.adopt(std::move(early)); },
                   Code::kOptimizerParameter,
                   {"spare (group 0, slot", "frozen", "OptimizerGuard::drop_frozen(optimizer)"});
    ASSERT_NE(early, nullptr);
    OptimizerGuard::drop_frozen(*early);
    auto optimizer = guard.adopt(std::move(early));
    net.forward(small_input(0), *state).sum().backward();
    EXPECT_NO_THROW(optimizer.step());
  });
}

/// State as a user's own optimizer may keep it.
struct OwnState : torch::optim::OptimizerCloneableParamState<OwnState> {};

TEST(GuardOverRanks, ARefusedAdoptListsStateFrozenAndForeignTogetherAndChangesNothing) {
  on_ranks(2, [](const DeviceMesh& mesh) { // on one rank no state is cut
    SmallNet net;
    auto early = std::make_unique<torch::optim::AdamW>(tensors_of(net), torch::optim::AdamWOptions(0.1));
    UnitRunner plain;
    net.forward(small_input(0), plain, /*use_spare=*/true).sum().backward();
    early->step();
    early->zero_grad();
    early->state()[net.last->weight.unsafeGetTensorImpl()] = std::make_unique<OwnState>();
    early->param_groups()[0].params().push_back(at::ones({2}).requires_grad_(true));
    net.spare.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh);
    expect_refusal([&] { OptimizerGuard(state).adopt(std::move(early)); },
                   Code::kOptimizerParameter,
                   {"last.weight (group 0, slot", "MomentState", "spare (group 0, slot", "frozen", "foreign"});
    const auto& kept =
        dynamic_cast<const torch::optim::AdamWParamState&>(*early->state().at(net.first->weight.unsafeGetTensorImpl()));
    EXPECT_EQ(kept.exp_avg().sizes(), at::IntArrayRef({6, 4})) << "whole, as before";
  });
}

TEST_P(Guard, AdagradStepsOnWhatWasAddedLater) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    net.spare.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::Adagrad>(
        torch::optim::AdagradOptions(0.5).initial_accumulator_value(0.25));
    net.forward(small_input(0), *state).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
    net.spare.set_requires_grad(true);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({net.spare}));
    net.forward(small_input(0), *state, /*use_spare=*/true).sum().backward();
    optimizer.step();
    const double expected = 1.0 - 0.5 * 9 / (std::sqrt(0.25 + 81.0) + 1e-10); // its gradient is 9: 3 x 3 outputs
    EXPECT_TRUE(at::allclose(net.spare.detach(), at::full_like(net.spare, expected)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Guard, ::testing::Values(1, 2), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing

#include "tieshard/runtime/optim/param_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/fused_sgd.h"
#include "tieshard/runtime/optim/guarded_optimizer.h"
#include "tieshard/runtime/optim/lion.h"

#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

std::vector<ParamGroupRule> rules_of(const std::vector<std::string>& texts) {
  std::vector<ParamGroupRule> rules;
  for (const std::string& text : texts) {
    rules.push_back(parse_param_group_rule(text));
  }
  return rules;
}

TEST(ParamGroups, HaveTheShardsThatTheirRulesTakeAndTheRestBehindThem) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    const OptimizerGuard guard(state);
    const auto groups = make_param_groups(guard, state->root(), rules_of({"block.first:lr=0.5", "no_decay"}));
    ASSERT_EQ(groups.size(), 3U);
    ASSERT_EQ(groups[0].parameters.size(), 2U);
    EXPECT_TRUE(groups[0].parameters[0].is_same(net.first->weight));
    EXPECT_TRUE(groups[0].parameters[1].is_same(net.first->bias));
    EXPECT_EQ(groups[0].lr, 0.5);
    EXPECT_FALSE(groups[0].weight_decay.has_value());
    EXPECT_EQ(groups[1].parameters.size(), 4U); // two biases, the 0-dim scale, spare
    EXPECT_EQ(groups[1].weight_decay, 0.0);
    EXPECT_EQ(groups[2].parameters.size(), 2U); // two weights
    EXPECT_NO_THROW(guard.adopt(build_with_groups<FusedAdamW>(groups, torch::optim::AdamWOptions(1e-3))));
  });
}

TEST(ParamGroups, LeaveFrozenParametersOutAndHaveNoEmptyRest) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    SmallNet net;
    net.last->weight.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh);
    const OptimizerGuard guard(state);
    EXPECT_EQ(make_param_groups(guard, state->root(), rules_of({"*:lr=1"})).size(), 1U);
    expect_refusal([&] { make_param_groups(guard, state->root(), rules_of({"last.weight:lr=1"})); },
                   Code::kUnknownParameter,
                   {"last.weight:lr=1", "trainable"});
  });
}

TEST(ParamGroups, FindATiedParameterByItsAlias) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
    const auto groups = make_param_groups(OptimizerGuard(state), state->root(), rules_of({"lm_head:lr=0"}));
    ASSERT_EQ(groups[0].parameters.size(), 1U);
    EXPECT_TRUE(groups[0].parameters[0].is_same(state->managed().front()->parameter()));
    EXPECT_EQ(state->managed().front()->fqn(), "model.embed_tokens.weight");
  });
}

/// Rates and decays of the groups of an optimizer whose own are 1e-3 and 0.25.
template <typename Optimizer, typename Options>
void expect_own_options(const Options& options) {
  const at::Tensor first = at::ones({2}).requires_grad_(true);
  const at::Tensor second = at::ones({3}).requires_grad_(true);
  // 0, 0.01 and 1e-4 are what constructors of options set, which LibTorch takes for "not given".
  const auto optimizer = build_with_groups<Optimizer>(
      {{.parameters = {first}, .lr = 1e-4, .weight_decay = 0.0}, {.parameters = {second}, .weight_decay = 0.01}},
      options);
  const auto& own = static_cast<const Options&>(optimizer->param_groups()[0].options());
  EXPECT_EQ(own.lr(), 1e-4);
  EXPECT_EQ(own.weight_decay(), 0.0);
  const auto& other = static_cast<const Options&>(optimizer->param_groups()[1].options());
  EXPECT_EQ(other.lr(), 1e-3);
  EXPECT_EQ(other.weight_decay(), 0.01);
}

TEST(ParamGroups, KeepValuesThatAreThoseOfAConstructor) {
  expect_own_options<FusedAdamW>(torch::optim::AdamWOptions(1e-3).weight_decay(0.25));
  expect_own_options<FusedSgd>(torch::optim::SGDOptions(1e-3).weight_decay(0.25));
  expect_own_options<Lion>(LionOptions(1e-3).weight_decay(0.25));
}

TEST(GroupRates, ScaleEachGroupsOwn) {
  const auto optimizer = build_with_groups<Lion>({{.parameters = {at::ones({2}).requires_grad_(true)}, .lr = 0.5},
                                                  {.parameters = {at::ones({2}).requires_grad_(true)}}},
                                                 LionOptions(2.0));
  const GroupRates rates(*optimizer);
  for (const double factor : {0.5, 0.25}) { // of the base, not of the last one
    rates.apply(*optimizer, factor);
    EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5 * factor);
    EXPECT_EQ(optimizer->param_groups()[1].options().get_lr(), 2.0 * factor);
  }
}

} // namespace
} // namespace tieshard::testing

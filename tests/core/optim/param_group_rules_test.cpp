#include "tieshard/core/optim/param_group_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAre;

std::vector<GroupCandidate> small_llama() {
  return {{.names = {"model.embed_tokens.weight", "lm_head.weight"}, .dims = 2},
          {.names = {"model.layers.0.self_attn.q_proj.weight"}, .dims = 2},
          {.names = {"model.layers.0.self_attn.q_proj.bias"}, .dims = 1},
          {.names = {"model.layers.0.input_layernorm.weight"}, .dims = 1},
          {.names = {"model.layers.10.input_layernorm.weight"}, .dims = 1},
          {.names = {"model.norm.weight"}, .dims = 1}};
}

std::vector<std::size_t> assign(const std::vector<std::string>& texts) {
  std::vector<ParamGroupRule> rules;
  for (const std::string& text : texts) {
    rules.push_back(parse_param_group_rule(text));
  }
  return assign_param_groups(rules, small_llama());
}

TEST(ParamGroupRule, IsReadFromItsText) {
  const ParamGroupRule rule = parse_param_group_rule("norm,q_proj.bias:weight_decay=0,lr=1e-5");
  EXPECT_THAT(rule.patterns, ElementsAre("norm", "q_proj.bias"));
  EXPECT_EQ(rule.weight_decay, 0.0);
  EXPECT_EQ(rule.lr, 1e-5);
  EXPECT_EQ(rule.text, "norm,q_proj.bias:weight_decay=0,lr=1e-5");
  EXPECT_FALSE(parse_param_group_rule("norm:lr=1").weight_decay.has_value());
}

TEST(ParamGroupRule, RefusesATextOfAnotherForm) {
  for (const auto& [text, got] :
       std::vector<std::pair<std::string, std::string>>{{"norm", "no colon"},
                                                        {"", "no colon"},
                                                        {":lr=1", "an empty pattern"},
                                                        {"norm,:lr=1", "an empty pattern"},
                                                        {"norm:", "the setting \"\""},
                                                        {"norm:lr", "the setting \"lr\""},
                                                        {"norm:momentum=1", "the setting \"momentum=1\""},
                                                        {"norm:lr=1,lr=2", "lr twice"},
                                                        {"norm:lr=-1", "lr=-1, whose value"},
                                                        {"norm:lr=nan", "lr=nan, whose value"},
                                                        {"norm:lr=1x", "lr=1x, whose value"},
                                                        {"norm:weight_decay=inf", "weight_decay=inf, whose value"}}) {
    expect_refusal([&] { parse_param_group_rule(text); }, Code::kBadFlag, {"parameter group " + text, "got " + got});
  }
}

TEST(ParamGroupPattern, IsFoundAnywhereInANameAndAStarStandsForAnything) {
  EXPECT_TRUE(matches("norm", "model.layers.0.input_layernorm.weight"));
  EXPECT_TRUE(matches("layers.1.", "model.layers.1.norm"));
  EXPECT_FALSE(matches("layers.1.", "model.layers.11.norm"));
  EXPECT_TRUE(matches("layers.*.bias", "model.layers.0.q_proj.bias"));
  EXPECT_TRUE(matches("*", "anything"));
  EXPECT_TRUE(matches("a*b*c", "xaxbxcx"));
  EXPECT_FALSE(matches("a*b*c", "xaxcxbx"));
  EXPECT_FALSE(matches("aa*a", "aa")); // no character counts twice
  EXPECT_FALSE(matches("norm", "nor"));
}

TEST(ParamGroups, HaveTheParametersThatTheirPatternsMatch) {
  EXPECT_THAT(assign({"norm,bias:weight_decay=0"}), ElementsAre(1, 1, 0, 0, 0, 0));
  EXPECT_THAT(assign({"model.norm.weight:lr=1"}), ElementsAre(1, 1, 1, 1, 1, 0));
  EXPECT_THAT(assign({}), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(ParamGroups, TakeWhatHasFewerThanTwoDimsAsNoDecay) {
  EXPECT_THAT(assign({"no_decay"}), ElementsAre(1, 1, 0, 0, 0, 0));
  EXPECT_EQ(parse_param_group_rule("no_decay").weight_decay, 0.0);
}

TEST(ParamGroups, AreFoundByAnAliasToo) {
  EXPECT_THAT(assign({"lm_head:lr=1e-5"}), ElementsAre(0, 1, 1, 1, 1, 1));
}

TEST(ParamGroups, OfTwoThatMatchTheFirstHasTheParameter) {
  EXPECT_THAT(assign({"model.norm:lr=1e-5", "no_decay"}), ElementsAre(2, 2, 1, 1, 1, 0));
  EXPECT_THAT(assign({"norm.weight,bias:lr=1", "q_proj:lr=2"}), ElementsAre(2, 1, 0, 0, 0, 0));
}

TEST(ParamGroups, RefuseAPatternThatTakesNothing) {
  expect_refusal([] { assign({"norm,gate:lr=1"}); },
                 Code::kUnknownParameter,
                 {"parameter group norm,gate:lr=1", "matching gate, got none"});
  expect_refusal([] { assign({"no_decay", "model.norm:lr=1"}); },
                 Code::kUnknownParameter,
                 {"parameter group model.norm:lr=1", "an earlier group has taken: no_decay"});
  expect_refusal([] { assign({"norm,bias:lr=1", "no_decay"}); },
                 Code::kUnknownParameter,
                 {"parameter group no_decay", "of fewer than two dims", "norm,bias:lr=1"});
}

} // namespace
} // namespace tieshard::testing

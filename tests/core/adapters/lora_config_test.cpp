#include "tieshard/core/adapters/lora_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/adapter_fixture.h"
#include "tests/support/diagnostics.h"

namespace tieshard {
namespace {

using testing::adapter_config;
using ::testing::ElementsAre;
using testing::expect_refusal;
using ::testing::HasSubstr;

LoraConfig parse(const std::string& extra, const std::string& targets = R"(["q_proj", "v_proj"])") {
  return LoraConfig::parse(adapter_config(targets, extra), "adapter_config.json");
}

TEST(LoraConfig, ReadsWhatPeftWrites) {
  const LoraConfig config = parse(R"("lora_dropout": 0.25, "use_rslora": true, "exclude_modules": "model.*",
      "modules_to_save": ["norm"], "layers_to_transform": [1, 3], "layers_pattern": "layers",
      "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"v_proj": 2.5}, "ensure_weight_tying": true,
      "init_lora_weights": "gaussian", "base_model_name_or_path": "some/model", "loftq_config": {}, "use_dora": false,
      "megatron_core": "megatron.core", "fan_in_fan_out": false, "trainable_token_indices": null, "revision": "main", )");
  EXPECT_EQ(config.rank, 2);
  EXPECT_EQ(config.alpha, 6);
  EXPECT_EQ(config.dropout, 0.25);
  EXPECT_TRUE(config.rslora);
  EXPECT_THAT(config.targets.names, ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(config.excluded.regex, "model.*");
  EXPECT_THAT(config.modules_to_save, ElementsAre("norm"));
  EXPECT_THAT(config.layers_to_transform, ElementsAre(1, 3));
  EXPECT_THAT(config.layers_pattern, ElementsAre("layers"));
  EXPECT_EQ(config.rank_pattern.at("q_proj"), 4);
  EXPECT_EQ(config.alpha_pattern.at("v_proj"), 2.5);
  EXPECT_EQ(config.tied, TiedTarget::kBoth);
  EXPECT_EQ(config.init, LoraInit::kGaussian);
  EXPECT_EQ(config.base_model, "some/model");
}

TEST(LoraConfig, ATextAsTargetsIsARegularExpressionButForAllLinear) {
  EXPECT_EQ(parse("", R"(".*q_proj")").targets.regex, ".*q_proj");
  EXPECT_TRUE(parse("", R"("all-linear")").targets.all_linear);
}

TEST(LoraConfig, WhatIsWrittenReadsBackEqual) {
  LoraConfig config = parse(R"("lora_dropout": 0.5, "use_rslora": true, "modules_to_save": ["norm"],
      "layers_to_transform": 3, "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 2.5},
      "ensure_weight_tying": true, "base_model_name_or_path": "a", )");
  const std::string text = config.to_json();
  const LoraConfig again = LoraConfig::parse(text, "again");
  EXPECT_EQ(again.to_json(), text);
  EXPECT_EQ(again.dropout, 0.5);
  EXPECT_EQ(again.alpha_pattern, config.alpha_pattern);
  EXPECT_EQ(again.layers_to_transform, config.layers_to_transform);
  EXPECT_EQ(again.tied, TiedTarget::kBoth);
  EXPECT_THAT(text, HasSubstr("\"lora_alpha\": 6,")); // an integer: PEFT's type
}

TEST(LoraConfig, RefusesEveryFeatureThatIsNotThereByTheNameOfItsField) {
  for (const auto& [field, value] : std::map<std::string, std::string>{
           {"use_dora", "true"},
           {"bias", "\"all\""},
           {"lora_bias", "true"},
           {"fan_in_fan_out", "true"},
           {"target_parameters", "[\"mlp.experts.gate_up_proj\"]"},
           {"trainable_token_indices", "[1, 2]"},
           {"layer_replication", "[[0, 4]]"},
           {"megatron_config", "{\"a\": 1}"},
           {"loftq_config", "{\"loftq_bits\": 4}"},
           {"init_lora_weights", "\"pissa\""},
           {"use_qalora", "true"},
           {"alora_invocation_tokens", "[5]"},
           {"a_field_of_tomorrow", "\"on\""},
       }) {
    expect_refusal([&] { parse(concat("\"", field, "\": ", value, ", ")); }, Code::kAdapterConfig, {field});
  }
}

TEST(LoraConfig, RefusesValuesThatCannotBe) {
  const auto refuse = [](const std::string& extra, const std::string& part) {
    expect_refusal([&] { parse(extra); }, Code::kAdapterConfig, {part});
  };
  refuse(R"("lora_dropout": 1.0, )", "lora_dropout");
  refuse(R"("use_rslora": "yes", )", "use_rslora");
  refuse(R"("modules_to_save": [1], )", "modules_to_save");
  refuse(R"("layers_to_transform": [-1], )", "layers_to_transform");
  refuse(R"("rank_pattern": {"q_proj": 0}, )", "q_proj");
  refuse(R"("rank_pattern": [], )", "rank_pattern");
  refuse(R"("rank_pattern": {"q_proj": null}, )", "rank_pattern");
  expect_refusal([] { parse("", "null"); }, Code::kAdapterConfig, {"target_modules"});
  expect_refusal(
      [] { parse(R"("layers_to_transform": 1, )", "\"all-linear\""); }, Code::kAdapterConfig, {"layers_to_transform"});
  refuse(R"("rank_pattern": {"q_proj": 18446744073709551615}, )", "q_proj");
  expect_refusal([] { LoraConfig::parse("[]", "file"); }, Code::kAdapterConfig, {"file"});
  expect_refusal([] { LoraConfig::parse(R"({"peft_type": "IA3"})", "file"); }, Code::kAdapterConfig, {"LORA", "IA3"});
  expect_refusal(
      [] { LoraConfig::parse(adapter_config("[\"a\"]", "", 0), "file"); }, Code::kAdapterConfig, {"file, r"});
}

} // namespace
} // namespace tieshard

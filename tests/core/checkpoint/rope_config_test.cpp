#include <gtest/gtest.h>

#include "tieshard/core/checkpoint/hf_config.h"

#include "tests/core/base/refusal.h"

namespace tieshard {
namespace {

HfConfig parse(const std::string& text) {
  return HfConfig::parse(text, "config.json");
}

RopeConfig rope(const std::string& text, std::string_view layer_type = {}, const RopeConfig& fallback = {}) {
  return parse(text).rope(layer_type, fallback);
}

TEST(Rope, ReadsTheFieldsOfYarn) {
  const RopeConfig all = rope(R"({"rope_scaling":{"rope_type":"yarn","factor":32,"beta_fast":16.0,"beta_slow":2,
      "truncate":false,"attention_factor":1.25,"mscale":0.5,"mscale_all_dim":0.75,
      "original_max_position_embeddings":4096}})");
  EXPECT_EQ(all.type, "yarn");
  EXPECT_EQ(all.factor, 32.0);
  EXPECT_EQ(all.beta_fast, 16.0);
  EXPECT_EQ(all.beta_slow, 2.0);
  EXPECT_FALSE(all.truncate);
  EXPECT_EQ(all.attention_factor, 1.25);
  EXPECT_EQ(all.mscale, 0.5);
  EXPECT_EQ(all.mscale_all_dim, 0.75);
  const RopeConfig few = rope(R"({"rope_scaling":{"rope_type":"yarn","factor":32,"attention_factor":null}})");
  EXPECT_EQ(few.beta_fast, 32.0);
  EXPECT_EQ(few.beta_slow, 1.0);
  EXPECT_TRUE(few.truncate);
  EXPECT_FALSE(few.attention_factor.has_value());
  EXPECT_FALSE(few.mscale.has_value());
  EXPECT_EQ(few.original_max_position_embeddings, 0) << "the model's own, which the family knows";
}

TEST(Rope, ReadsThePartialFactorWhereverItStands) {
  EXPECT_EQ(rope("{}").partial_rotary_factor, 1.0);
  EXPECT_EQ(rope(R"({"partial_rotary_factor":0.75})").partial_rotary_factor, 0.75);
  EXPECT_EQ(
      rope(R"({"partial_rotary_factor":0.75,"rope_parameters":{"partial_rotary_factor":0.5}})").partial_rotary_factor,
      0.5);
}

TEST(Rope, TakesVersion4sSetWhereBothArePresentUnlessItIsEmpty) {
  const std::string parameters = R"("rope_parameters":{"rope_type":"linear","factor":2})";
  EXPECT_EQ(rope("{" + parameters + R"(,"rope_scaling":{"type":"linear","factor":3}})").factor, 3.0);
  EXPECT_EQ(rope("{" + parameters + R"(,"rope_scaling":{}})").factor, 2.0);
}

TEST(Rope, TakesAnOriginalContextBesideTheSetOverTheOneInIt) {
  EXPECT_EQ(rope(R"({"original_max_position_embeddings":8,
      "rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":16}})")
                .original_max_position_embeddings,
            8);
}

TEST(Rope, IsTheFallbackWhereTheFileHasNoSetButItsOwnTheta) {
  const RopeConfig fallback{.type = "yarn", .theta = 150000.0, .factor = 32.0, .truncate = false};
  const RopeConfig absent = rope("{}", {}, fallback);
  EXPECT_EQ(absent.type, "yarn");
  EXPECT_EQ(absent.theta, 150000.0);
  EXPECT_FALSE(absent.truncate);
  EXPECT_EQ(rope(R"({"rope_theta":5.0})", {}, fallback).theta, 5.0);
  EXPECT_EQ(rope(R"({"rope_theta":5.0})", {}, fallback).type, "yarn");
  const RopeConfig empty = rope(R"({"rope_parameters":{}})", {}, fallback);
  EXPECT_EQ(empty.type, "default") << "a set, though without fields";
  EXPECT_EQ(empty.theta, 150000.0);
}

TEST(Rope, OfALayerTypeIsItsSetOfVersion5) {
  const std::string text = R"({"rope_theta":9.0,"rope_parameters":{
      "full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":1000000.0},
      "sliding_attention":{"rope_type":"default","rope_theta":20000.0}}})";
  const RopeConfig full = rope(text, "full_attention");
  EXPECT_EQ(full.type, "linear");
  EXPECT_EQ(full.factor, 8.0);
  EXPECT_EQ(full.theta, 1000000.0);
  const RopeConfig sliding = rope(text, "sliding_attention");
  EXPECT_EQ(sliding.type, "default");
  EXPECT_EQ(sliding.factor, 1.0);
  EXPECT_EQ(sliding.theta, 20000.0);
}

TEST(Rope, OfALayerTypeIsInThreeFieldsOfVersion4) {
  const std::string text = R"({"rope_theta":500000.0,"rope_local_base_freq":30000.0,
      "rope_scaling":{"rope_type":"linear","factor":8.0}})";
  const RopeConfig full = rope(text, "full_attention", {.theta = 1e6});
  EXPECT_EQ(full.type, "linear");
  EXPECT_EQ(full.factor, 8.0);
  EXPECT_EQ(full.theta, 500000.0);
  const RopeConfig sliding = rope(text, "sliding_attention", {.theta = 1e4});
  EXPECT_EQ(sliding.type, "default");
  EXPECT_EQ(sliding.theta, 30000.0);
  EXPECT_EQ(rope("{}", "full_attention", {.theta = 1e6}).theta, 1e6);
  EXPECT_EQ(rope("{}", "sliding_attention", {.theta = 1e4}).theta, 1e4);
}

TEST(Rope, RefusesASetThatIsFlatWhereEachLayerTypeHasOne) {
  for (const char* text : {R"({"rope_parameters":{"rope_theta":1.0}})", R"({"rope_parameters":2})"}) {
    const HfConfig config = parse(text);
    expect_refusal<InputError>(
        Code::kConfigValue, {"rope_parameters", "config.json"}, [&] { config.rope("full_attention"); });
  }
}

TEST(Rope, RefusesASetWithoutTheNumbersThatItsTypeNeeds) {
  for (const auto& [text, field] : std::vector<std::pair<const char*, const char*>>{
           {R"({"rope_scaling":{"type":"linear"}})", "rope_scaling.factor"},
           {R"({"rope_scaling":{"rope_type":"yarn","factor":null}})", "rope_scaling.factor"},
           {R"({"rope_parameters":{"rope_type":"llama3","factor":8,"high_freq_factor":4}})",
            "rope_parameters.low_freq_factor"},
           {R"({"rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":4}})",
            "rope_parameters.high_freq_factor"}}) {
    const HfConfig config = parse(text);
    expect_refusal<InputError>(Code::kConfigMissingKey, {field, "config.json"}, [&] { config.rope(); });
  }
}

} // namespace
} // namespace tieshard

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/known_families.h"

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::HasSubstr;
using testing::raised;
using Rows = std::vector<std::pair<std::string, Shape>>;

/// A config that transformers accepts, with `changes` laid over it (a null removes a field).
HfConfig config(const char* changes = "{}") {
  Json document = Json::parse(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 11,
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64})");
  document.merge_patch(Json::parse(changes));
  return HfConfig::parse(document.dump(), "config.json");
}

Rows rows(const ParameterTable& table) {
  Rows result;
  for (const ParameterInfo& info : table) {
    result.emplace_back(info.fqn, info.shape);
  }
  return result;
}

std::optional<Diagnostic> refusal(const char* changes) {
  return raised<InputError>([changes] { llama_family().decoder(config(changes)); });
}

DecoderConfig decoder(const char* changes) {
  return llama_family().decoder(config(changes)).value();
}

// Both lists are what transformers 5.24 prints for LlamaForCausalLM(config).named_parameters(remove_duplicate=False).
TEST(LlamaTable, WithAllBiasesIsInTransformersOrder) {
  const ParameterTable table = llama_family().table(config(R"({"attention_bias": true, "mlp_bias": true})"));
  EXPECT_EQ(rows(table),
            (Rows{
                {"model.embed_tokens.weight", {11, 8}},
                {"model.layers.0.self_attn.q_proj.weight", {8, 8}},
                {"model.layers.0.self_attn.q_proj.bias", {8}},
                {"model.layers.0.self_attn.k_proj.weight", {4, 8}},
                {"model.layers.0.self_attn.k_proj.bias", {4}},
                {"model.layers.0.self_attn.v_proj.weight", {4, 8}},
                {"model.layers.0.self_attn.v_proj.bias", {4}},
                {"model.layers.0.self_attn.o_proj.weight", {8, 8}},
                {"model.layers.0.self_attn.o_proj.bias", {8}},
                {"model.layers.0.mlp.gate_proj.weight", {12, 8}},
                {"model.layers.0.mlp.gate_proj.bias", {12}},
                {"model.layers.0.mlp.up_proj.weight", {12, 8}},
                {"model.layers.0.mlp.up_proj.bias", {12}},
                {"model.layers.0.mlp.down_proj.weight", {8, 12}},
                {"model.layers.0.mlp.down_proj.bias", {8}},
                {"model.layers.0.input_layernorm.weight", {8}},
                {"model.layers.0.post_attention_layernorm.weight", {8}},
                {"model.norm.weight", {8}},
                {"lm_head.weight", {11, 8}},
            }));
}

TEST(LlamaTable, WithAnOwnHeadSizeAndTwoLayersIsInTransformersOrder) {
  const ParameterTable table = llama_family().table(config(R"({"num_hidden_layers": 2, "head_dim": 6})"));
  EXPECT_EQ(rows(table),
            (Rows{
                {"model.embed_tokens.weight", {11, 8}},
                {"model.layers.0.self_attn.q_proj.weight", {24, 8}},
                {"model.layers.0.self_attn.k_proj.weight", {12, 8}},
                {"model.layers.0.self_attn.v_proj.weight", {12, 8}},
                {"model.layers.0.self_attn.o_proj.weight", {8, 24}},
                {"model.layers.0.mlp.gate_proj.weight", {12, 8}},
                {"model.layers.0.mlp.up_proj.weight", {12, 8}},
                {"model.layers.0.mlp.down_proj.weight", {8, 12}},
                {"model.layers.0.input_layernorm.weight", {8}},
                {"model.layers.0.post_attention_layernorm.weight", {8}},
                {"model.layers.1.self_attn.q_proj.weight", {24, 8}},
                {"model.layers.1.self_attn.k_proj.weight", {12, 8}},
                {"model.layers.1.self_attn.v_proj.weight", {12, 8}},
                {"model.layers.1.self_attn.o_proj.weight", {8, 24}},
                {"model.layers.1.mlp.gate_proj.weight", {12, 8}},
                {"model.layers.1.mlp.up_proj.weight", {12, 8}},
                {"model.layers.1.mlp.down_proj.weight", {8, 12}},
                {"model.layers.1.input_layernorm.weight", {8}},
                {"model.layers.1.post_attention_layernorm.weight", {8}},
                {"model.norm.weight", {8}},
                {"lm_head.weight", {11, 8}},
            }));
}

TEST(LlamaTable, GivesEachNameItsOwnIdentityEvenWhenTied) {
  const ParameterTable table = llama_family().table(config(R"({"tie_word_embeddings": true})"));
  EXPECT_NE(table.front().identity, table.back().identity);
}

TEST(LlamaTable, TakesTheDtypeOfTheConfigAndElseF32) {
  EXPECT_EQ(llama_family().table(config()).front().dtype, DType::kF32);
  EXPECT_EQ(llama_family().table(config(R"({"torch_dtype": "bfloat16"})")).front().dtype, DType::kBF16);
  EXPECT_EQ(llama_family().table(config(R"({"dtype": "float16"})")).front().dtype, DType::kF16);
}

TEST(LlamaFamily, MakesOneUnitOfEachLayer) {
  const auto units = llama_family().units(config(R"({"num_hidden_layers": 11})"));
  ASSERT_EQ(units.size(), 11U);
  EXPECT_EQ(units[1].name, "model.layers.1");
  EXPECT_EQ(units[1].prefix, "model.layers.1."); // with the dot, so that layer 10 is not taken by it
}

TEST(LlamaDecoder, FillsDefaultsIn) {
  const DecoderConfig llama = decoder(R"({"num_key_value_heads": null, "head_dim": null})");
  EXPECT_EQ(llama.num_key_value_heads, 4);
  EXPECT_EQ(llama.head_dim, 2);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_FALSE(llama.query_key_value_bias);
  EXPECT_FALSE(llama.output_bias);
  EXPECT_FALSE(llama.mlp_bias);
  EXPECT_FALSE(llama.pad_token_id.has_value());
  EXPECT_DOUBLE_EQ(llama.attention_scale, std::sqrt(0.5));
  ASSERT_EQ(llama.ropes.size(), 1U);
  EXPECT_EQ(llama.ropes[0].theta, 10000.0);
}

TEST(LlamaDecoder, CountsANegativePaddingRowFromTheEnd) {
  EXPECT_EQ(decoder(R"({"pad_token_id": -1})").pad_token_id, 10);
  EXPECT_EQ(decoder(R"({"pad_token_id": 3})").pad_token_id, 3);
  EXPECT_EQ(refusal(R"({"pad_token_id": 11})")->code, Code::kConfigValue);
  EXPECT_EQ(refusal(R"({"pad_token_id": -12})")->code, Code::kConfigValue);
}

TEST(LlamaDecoder, AcceptsTheFourRopeTypes) {
  EXPECT_EQ(decoder(R"({"rope_scaling": {"type": "linear", "factor": 2.0}})").ropes[0].factor, 2.0);
  const RopeConfig llama3 = decoder(R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0,
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}})")
                                .ropes[0];
  EXPECT_EQ(llama3.type, "llama3");
  EXPECT_EQ(llama3.theta, 500000.0);
  const RopeConfig yarn = decoder(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})").ropes[0];
  EXPECT_EQ(yarn.type, "yarn");
  EXPECT_EQ(yarn.original_max_position_embeddings, 64) << "the context of the model where the set names none";
}

TEST(LlamaDecoder, RefusesAnotherRopeTypeNamingTheSupportedOnes) {
  for (const char* type : {"longrope", "dynamic", "su", "proportional"}) {
    const std::string changes = concat(R"({"rope_scaling": {"factor": 4.0, "rope_type": ")", type, "\"}}");
    const auto refused = refusal(changes.c_str());
    ASSERT_TRUE(refused.has_value()) << type;
    EXPECT_EQ(refused->code, Code::kConfigValue);
    EXPECT_THAT(refused->why, HasSubstr("default, linear, llama3, yarn"));
    EXPECT_THAT(refused->why, HasSubstr(type));
  }
}

TEST(LlamaDecoder, RefusesRopeNumbersThatGiveNoFrequencies) {
  for (const char* changes : {
           R"({"rope_theta": 0})",
           R"({"rope_scaling": {"rope_type": "linear", "factor": 0}})",
           R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}})",
           R"({"rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 32}})",
           R"({"rope_scaling": {"rope_type": "yarn", "factor": 8, "attention_factor": 0}})",
           R"({"rope_theta": 1, "rope_scaling": {"rope_type": "yarn", "factor": 8}})",
           R"({"partial_rotary_factor": 0.5})",
       }) {
    const auto refused = refusal(changes);
    ASSERT_TRUE(refused.has_value()) << changes;
    EXPECT_EQ(refused->code, Code::kConfigValue) << changes;
  }
}

TEST(LlamaDecoder, RefusesAnotherActivation) {
  const auto refused = refusal(R"({"hidden_act": "relu"})");
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kConfigValue);
  EXPECT_THAT(refused->why, HasSubstr("silu"));
}

TEST(LlamaDecoder, RefusesFieldsOfOtherFamiliesThatWouldChangeItsNumbers) {
  for (const char* changes : {
           R"({"attention_multiplier": 0.5})",
           R"({"logits_scaling": 8})",
           R"({"clip_qkv": 8.0})",
           R"({"no_rope_layers": [1, 0]})",
           R"({"final_logit_softcapping": 30.0})",
       }) {
    const auto refused = refusal(changes);
    ASSERT_TRUE(refused.has_value()) << changes;
    EXPECT_EQ(refused->code, Code::kConfigValue) << changes;
    EXPECT_THAT(refused->fix, HasSubstr("without it")) << changes;
  }
  EXPECT_FALSE(refusal(R"({"attention_multiplier": 1.0, "clip_qkv": null})").has_value());
}

TEST(LlamaDecoder, RefusesAMissingSize) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    const auto refused = refusal(concat("{\"", key, "\": null}").c_str());
    ASSERT_TRUE(refused.has_value()) << key;
    EXPECT_EQ(refused->code, Code::kConfigMissingKey) << key;
  }
}

TEST(LlamaDecoder, AcceptsAnMlpOfSizeZero) {
  EXPECT_FALSE(refusal(R"({"intermediate_size": 0})").has_value());
}

TEST(LlamaDecoder, RefusesSizesThatDoNotFitTogether) {
  for (const char* changes : {
           R"({"num_attention_heads": 3, "num_key_value_heads": 3})", // 8 / 3
           R"({"num_key_value_heads": 3})",
           R"({"num_key_value_heads": 0})",
           R"({"num_attention_heads": 0})",
           R"({"vocab_size": 0})",
           R"({"head_dim": 3})",
           R"({"num_hidden_layers": 1000000000})",
           R"({"num_attention_heads": 1073741824, "num_key_value_heads": 1, "head_dim": 1099511627776})",
       }) {
    const auto refused = refusal(changes);
    ASSERT_TRUE(refused.has_value()) << changes;
    EXPECT_EQ(refused->code, Code::kConfigValue) << changes;
  }
}

TEST(LlamaDecoder, RefusesLlama3RopeWithoutItsParameters) {
  const auto refused = refusal(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})");
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kConfigMissingKey);
}

} // namespace
} // namespace tieshard

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/known_families.h"

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::raised;
using Row = std::pair<std::string, Shape>;
using Rows = std::vector<Row>;

/// Eight layers of the sizes that every decoder needs, with `changes` laid over them (a null removes a field).
HfConfig config(const std::string& changes = "{}") {
  Json document = Json::parse(R"({"vocab_size": 40000, "hidden_size": 64, "intermediate_size": 12,
    "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 2})");
  document.update(Json::parse(changes));
  return HfConfig::parse(document.dump(), "config.json");
}

DecoderConfig decoder(const Family& family, const std::string& changes = "{}") {
  return family.decoder(config(changes)).value();
}

std::vector<std::int64_t> windows(const DecoderConfig& decoder) {
  std::vector<std::int64_t> result;
  for (const DecoderLayerConfig& layer : decoder.layers) {
    result.push_back(layer.window);
  }
  return result;
}

std::vector<bool> mixtures(const DecoderConfig& decoder) {
  std::vector<bool> result;
  for (const DecoderLayerConfig& layer : decoder.layers) {
    result.push_back(layer.experts);
  }
  return result;
}

/// The rows of layer 0, without its name.
Rows first_layer(const Family& family, const std::string& changes) {
  const std::string prefix = "model.layers.0.";
  Rows rows;
  for (const ParameterInfo& info : family.table(config(changes))) {
    if (info.fqn.starts_with(prefix)) {
      rows.emplace_back(info.fqn.substr(prefix.size()), info.shape);
    }
  }
  return rows;
}

void expect_refused(const Family& family, const std::string& changes, const std::string& field) {
  const auto refused = raised<InputError>([&] { family.decoder(config(changes)); });
  ASSERT_TRUE(refused.has_value()) << family.name() << changes;
  EXPECT_EQ(refused->code, Code::kConfigValue) << changes;
  EXPECT_THAT(refused->where, HasSubstr(field)) << changes;
}

TEST(DecoderTable, OfPhi3HasFusedProjectionsAfterTheOutputProjection) {
  EXPECT_EQ(first_layer(phi3_family(), R"({"pad_token_id": null})"),
            (Rows{{"self_attn.o_proj.weight", {64, 64}},
                  {"self_attn.qkv_proj.weight", {72, 64}},
                  {"mlp.gate_up_proj.weight", {24, 64}},
                  {"mlp.down_proj.weight", {64, 12}},
                  {"input_layernorm.weight", {64}},
                  {"post_attention_layernorm.weight", {64}}}));
}

TEST(DecoderTable, OfGemma3HasNormsOnQueriesKeysAndBranches) {
  EXPECT_EQ(first_layer(gemma3_text_family(), R"({"head_dim": 4})"),
            (Rows{{"self_attn.q_proj.weight", {128, 64}},
                  {"self_attn.k_proj.weight", {8, 64}},
                  {"self_attn.v_proj.weight", {8, 64}},
                  {"self_attn.o_proj.weight", {64, 128}},
                  {"self_attn.q_norm.weight", {4}},
                  {"self_attn.k_norm.weight", {4}},
                  {"mlp.gate_proj.weight", {12, 64}},
                  {"mlp.up_proj.weight", {12, 64}},
                  {"mlp.down_proj.weight", {64, 12}},
                  {"input_layernorm.weight", {64}},
                  {"post_attention_layernorm.weight", {64}},
                  {"pre_feedforward_layernorm.weight", {64}},
                  {"post_feedforward_layernorm.weight", {64}}}));
}

TEST(DecoderTable, HasEachExpertUnderTheNamesOfFiles) {
  const Rows qwen = first_layer(qwen3_moe_family(), R"({"num_experts": 2, "num_experts_per_tok": 1,
    "moe_intermediate_size": 6})");
  EXPECT_EQ(Rows(qwen.begin() + 6, qwen.end() - 2),
            (Rows{{"mlp.gate.weight", {2, 64}},
                  {"mlp.experts.0.gate_proj.weight", {6, 64}},
                  {"mlp.experts.0.up_proj.weight", {6, 64}},
                  {"mlp.experts.0.down_proj.weight", {64, 6}},
                  {"mlp.experts.1.gate_proj.weight", {6, 64}},
                  {"mlp.experts.1.up_proj.weight", {6, 64}},
                  {"mlp.experts.1.down_proj.weight", {64, 6}}}));
  const Rows mixtral = first_layer(mixtral_family(), R"({"num_local_experts": 1, "num_experts_per_tok": 1})");
  EXPECT_EQ(Rows(mixtral.begin() + 4, mixtral.end() - 2),
            (Rows{{"block_sparse_moe.gate.weight", {1, 64}},
                  {"block_sparse_moe.experts.0.w1.weight", {12, 64}},
                  {"block_sparse_moe.experts.0.w3.weight", {12, 64}},
                  {"block_sparse_moe.experts.0.w2.weight", {64, 12}}}));
}

TEST(DecoderTable, OfQwen2MoeHasASharedExpertAndItsGateAfterTheOthers) {
  const Rows rows = first_layer(qwen2_moe_family(), R"({"num_experts": 1, "num_experts_per_tok": 1,
    "moe_intermediate_size": 6, "shared_expert_intermediate_size": 10})");
  EXPECT_EQ(Rows(rows.begin() + 7, rows.end() - 2),
            (Rows{{"mlp.gate.weight", {1, 64}},
                  {"mlp.experts.0.gate_proj.weight", {6, 64}},
                  {"mlp.experts.0.up_proj.weight", {6, 64}},
                  {"mlp.experts.0.down_proj.weight", {64, 6}},
                  {"mlp.shared_expert.gate_proj.weight", {10, 64}},
                  {"mlp.shared_expert.up_proj.weight", {10, 64}},
                  {"mlp.shared_expert.down_proj.weight", {64, 10}},
                  {"mlp.shared_expert_gate.weight", {1, 64}}}));
}

TEST(DecoderFamilies, TieOnlyTheGemmasByDefault) {
  std::vector<std::string_view> tied;
  for (const Family* family : {&llama_family(),
                               &mistral_family(),
                               &qwen2_family(),
                               &qwen3_family(),
                               &qwen2_moe_family(),
                               &qwen3_moe_family(),
                               &mixtral_family(),
                               &phi3_family(),
                               &gemma_family(),
                               &gemma2_family(),
                               &gemma3_text_family(),
                               &gpt_oss_family()}) {
    if (family->tied_by_default()) {
      tied.push_back(family->name());
    }
    EXPECT_TRUE(family->is_known_buffer("model.layers.0.self_attn.rotary_emb.inv_freq")) << family->name();
  }
  EXPECT_THAT(tied, ElementsAre("gemma", "gemma2", "gemma3_text"));
}

TEST(DecoderFamilies, OthersHaveNone) {
  for (const Family* family : {&gpt2_family(), &t5_family(), &albert_family()}) {
    EXPECT_FALSE(family->decoder(config()).has_value());
  }
}

TEST(Windows, AreInAllLayersOfMistralUnlessItsConfigSaysNull) {
  EXPECT_THAT(windows(decoder(mistral_family())), Each(4096));
  EXPECT_THAT(windows(decoder(mistral_family(), R"({"sliding_window": 7})")), Each(7));
  EXPECT_THAT(windows(decoder(mistral_family(), R"({"sliding_window": null})")), Each(0));
  EXPECT_THAT(windows(decoder(mixtral_family())), Each(0));
  EXPECT_THAT(windows(decoder(mixtral_family(), R"({"sliding_window": 7})")), Each(7));
  EXPECT_THAT(windows(decoder(phi3_family(), R"({"sliding_window": 7})")), Each(7));
  EXPECT_THAT(windows(decoder(llama_family(), R"({"sliding_window": 7})")), Each(0)) << "the class does not look at it";
}

TEST(Windows, OfQwenAreInItsLastLayersWhenUsed) {
  for (const Family* family : {&qwen2_family(), &qwen3_family()}) {
    EXPECT_THAT(windows(decoder(*family, R"({"sliding_window": 7, "max_window_layers": 2})")), Each(0));
    EXPECT_THAT(
        windows(decoder(*family, R"({"sliding_window": 7, "max_window_layers": 5, "use_sliding_window": true})")),
        ElementsAre(0, 0, 0, 0, 0, 7, 7, 7));
    EXPECT_THAT(windows(decoder(*family, R"({"use_sliding_window": true})")), Each(0)) << "from layer 28 on";
    EXPECT_THAT(windows(decoder(*family, R"({"use_sliding_window": true, "sliding_window": null})")), Each(0));
  }
  EXPECT_THAT(windows(decoder(qwen3_moe_family(), R"({"use_sliding_window": true, "max_window_layers": 5})")),
              Each(4096))
      << "its class has one mask for all layers";
}

TEST(Windows, OfQwen2MoeAreInEverySecondOfItsFirstLayersWhenUsed) {
  const Family& family = qwen2_moe_family();
  EXPECT_THAT(windows(decoder(family, R"({"sliding_window": 0, "use_sliding_window": false})")), Each(0))
      << "as transformers 5 writes it";
  EXPECT_THAT(windows(decoder(family, R"({"use_sliding_window": true})")),
              ElementsAre(4096, 0, 4096, 0, 4096, 0, 4096, 0));
  EXPECT_THAT(windows(decoder(family, R"({"use_sliding_window": true, "sliding_window": 7, "max_window_layers": 4})")),
              ElementsAre(7, 0, 7, 0, 0, 0, 0, 0));
  expect_refused(family, R"({"use_sliding_window": true, "sliding_window": 0})", "sliding_window");
}

TEST(Windows, AlternateInGemma2AndGptOssAndLeaveEverySixthLayerOfGemma3) {
  EXPECT_THAT(windows(decoder(gemma2_family())), ElementsAre(4096, 0, 4096, 0, 4096, 0, 4096, 0));
  EXPECT_THAT(windows(decoder(gpt_oss_family())), ElementsAre(128, 0, 128, 0, 128, 0, 128, 0));
  EXPECT_THAT(windows(decoder(gemma3_text_family(), R"({"sliding_window": 5})")), ElementsAre(5, 5, 5, 5, 5, 0, 5, 5));
  EXPECT_THAT(windows(decoder(gemma3_text_family(), R"({"sliding_window": 5, "sliding_window_pattern": 3})")),
              ElementsAre(5, 5, 0, 5, 5, 0, 5, 5));
}

TEST(Windows, AreWhereLayerTypesSaySo) {
  const std::string types = R"({"num_hidden_layers": 3, "use_sliding_window": true, "sliding_window": 9,
    "layer_types": ["full_attention", "sliding_attention", "attention"]})";
  for (const Family* family : {&qwen2_family(),
                               &qwen2_moe_family(),
                               &qwen3_family(),
                               &gemma2_family(),
                               &gemma3_text_family(),
                               &gpt_oss_family()}) {
    EXPECT_THAT(windows(decoder(*family, types)), ElementsAre(0, 9, 0)) << family->name();
  }
}

TEST(Windows, RefuseWhatNoLayerCanBe) {
  expect_refused(gemma2_family(), R"({"layer_types": ["full_attention"]})", "layer_types");
  expect_refused(gemma2_family(), R"({"layer_types": "full_attention"})", "layer_types");
  expect_refused(qwen3_family(), R"({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})", "layer_types");
  expect_refused(qwen2_family(), R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})", "sliding_window");
  expect_refused(gpt_oss_family(), R"({"sliding_window": null})", "sliding_window");
  expect_refused(gpt_oss_family(), R"({"sliding_window": 0})", "sliding_window");
  expect_refused(mistral_family(), R"({"num_hidden_layers": 1, "layer_types": ["full_attention"]})", "layer_types");
}

TEST(Experts, OfQwen3MoeAreWhereTheConfigHasNoMlp) {
  const DecoderConfig all = decoder(qwen3_moe_family());
  EXPECT_THAT(mixtures(all), Each(true));
  EXPECT_EQ(all.experts->count, 128);
  EXPECT_EQ(all.experts->chosen, 8);
  EXPECT_EQ(all.experts->intermediate_size, 768);
  EXPECT_FALSE(all.experts->renormalise);
  EXPECT_THAT(mixtures(decoder(qwen3_moe_family(), R"({"decoder_sparse_step": 3, "mlp_only_layers": [5]})")),
              ElementsAre(false, false, true, false, false, false, false, false));
  EXPECT_FALSE(decoder(qwen3_moe_family(), R"({"num_experts": 0})").experts.has_value());
}

TEST(Experts, OfQwen2MoeHaveOneThatAllTokensShare) {
  const DecoderConfig all = decoder(qwen2_moe_family());
  EXPECT_THAT(mixtures(all), Each(true));
  EXPECT_EQ(all.experts->count, 60);
  EXPECT_EQ(all.experts->chosen, 4);
  EXPECT_EQ(all.experts->intermediate_size, 1408);
  EXPECT_EQ(all.experts->shared_intermediate_size, 5632);
  EXPECT_FALSE(all.experts->renormalise);
  EXPECT_EQ(decoder(qwen3_moe_family()).experts->shared_intermediate_size, 0);
  EXPECT_THAT(mixtures(decoder(qwen2_moe_family(), R"({"decoder_sparse_step": 2, "mlp_only_layers": [3]})")),
              ElementsAre(false, true, false, false, false, true, false, true));
  EXPECT_THAT(mixtures(decoder(qwen2_moe_family(), R"({"mlp_only_layers": null})")), Each(true));
  EXPECT_EQ(decoder(qwen2_moe_family(), R"({"num_local_experts": 9})").experts->count, 60)
      << "the class has no such field";
}

TEST(Experts, OfQwen2MoeAreRefusedUnderTheNamesOfItsFields) {
  const Family& family = qwen2_moe_family();
  expect_refused(family, R"({"num_experts": 4, "num_experts_per_tok": 5})", "num_experts_per_tok");
  expect_refused(family, R"({"num_experts": 100000})", "num_experts");
  expect_refused(family, R"({"num_experts": -1})", "num_experts");
  expect_refused(family, R"({"moe_intermediate_size": 0})", "moe_intermediate_size");
  expect_refused(family, R"({"shared_expert_intermediate_size": 0})", "shared_expert_intermediate_size");
  expect_refused(family, R"({"decoder_sparse_step": 0})", "decoder_sparse_step");
  expect_refused(family, R"({"mlp_only_layers": 3})", "mlp_only_layers");
  expect_refused(family, R"({"output_router_logits": true})", "output_router_logits");
}

TEST(Qwen2Moe, HasBiasesOnQueriesKeysAndValuesUnlessItsConfigSaysNone) {
  EXPECT_TRUE(decoder(qwen2_moe_family()).query_key_value_bias);
  EXPECT_FALSE(decoder(qwen2_moe_family()).output_bias);
  EXPECT_FALSE(decoder(qwen2_moe_family(), R"({"qkv_bias": false})").query_key_value_bias);
}

TEST(Experts, AreCountedUnderBothNames) {
  for (const Family* family : {&qwen3_moe_family(), &mixtral_family(), &gpt_oss_family()}) {
    EXPECT_EQ(decoder(*family, R"({"num_experts": 9})").experts->count, 9) << family->name();
    EXPECT_EQ(decoder(*family, R"({"num_local_experts": 9})").experts->count, 9) << family->name();
    expect_refused(*family, R"({"num_local_experts": 9, "num_experts": 8})", "num_experts");
  }
}

TEST(Experts, OfGptOssAreStackedAndClamped) {
  const DecoderConfig gpt = decoder(gpt_oss_family(), R"({"swiglu_limit": 6.0, "hidden_act": "ignored"})");
  EXPECT_EQ(gpt.experts->count, 128);
  EXPECT_EQ(gpt.experts->chosen, 4);
  EXPECT_EQ(gpt.experts->layout, ExpertLayout::kStackedInterleaved);
  EXPECT_EQ(gpt.experts->swiglu_limit, 6.0);
  EXPECT_TRUE(gpt.sinks);
  expect_refused(gpt_oss_family(), R"({"swiglu_alpha": 1.5})", "swiglu_alpha");
}

TEST(Experts, RefuseNumbersThatNoTokenCanGoThrough) {
  for (const Family* family : {&qwen3_moe_family(), &mixtral_family(), &gpt_oss_family()}) {
    expect_refused(*family, R"({"num_local_experts": 4, "num_experts_per_tok": 5})", "num_experts_per_tok");
    expect_refused(*family, R"({"num_experts_per_tok": 0})", "num_experts_per_tok");
    expect_refused(*family, R"({"num_local_experts": 100000})", "num_local_experts");
    expect_refused(*family, R"({"output_router_logits": true})", "output_router_logits");
  }
  expect_refused(qwen3_moe_family(), R"({"mlp_only_layers": [-1]})", "mlp_only_layers");
  expect_refused(qwen3_moe_family(), R"({"mlp_only_layers": 3})", "mlp_only_layers");
  expect_refused(mixtral_family(), R"({"router_jitter_noise": 0.1})", "router_jitter_noise");
}

TEST(Gemma, ScalesItsEmbeddingAndMeansTheApproximationByGelu) {
  const DecoderConfig gemma = decoder(gemma_family(), R"({"hidden_act": "gelu"})");
  EXPECT_EQ(gemma.activation, GateActivation::kGeluTanh);
  EXPECT_EQ(gemma.embedding_scale, 8.0);
  EXPECT_EQ(gemma.norm_scale, NormScale::kOnePlusWeight);
  EXPECT_EQ(gemma.head_dim, 256);
  EXPECT_EQ(gemma.attention_scale, 1.0 / 16);
  EXPECT_EQ(gemma.pad_token_id, 0);
  EXPECT_FALSE(decoder(gemma_family(), R"({"pad_token_id": null})").pad_token_id.has_value());
  EXPECT_EQ(decoder(gemma2_family(), R"({"hidden_activation": "gelu"})").activation, GateActivation::kGeluErf);
  for (const Family* family : {&gemma_family(), &gemma2_family(), &gemma3_text_family()}) {
    expect_refused(*family, R"({"use_bidirectional_attention": true})", "use_bidirectional_attention");
  }
}

TEST(Gemma2, CapsScoresAndLogitsUnlessItsConfigSaysNull) {
  const DecoderConfig gemma = decoder(gemma2_family(), R"({"query_pre_attn_scalar": 144})");
  EXPECT_EQ(gemma.attention_softcap, 50.0);
  EXPECT_EQ(gemma.logits_softcap, 30.0);
  EXPECT_EQ(gemma.attention_scale, 1.0 / 12);
  const DecoderConfig none =
      decoder(gemma2_family(), R"({"attn_logit_softcapping": null, "final_logit_softcapping": null})");
  EXPECT_EQ(none.attention_softcap, 0.0);
  EXPECT_EQ(none.logits_softcap, 0.0);
  expect_refused(gemma2_family(), R"({"final_logit_softcapping": 0.0})", "final_logit_softcapping");
}

TEST(Gemma3, RotatesLayersWithAWindowOtherwise) {
  const DecoderConfig gemma =
      decoder(gemma3_text_family(), R"({"rope_scaling": {"rope_type": "linear", "factor": 8}})");
  ASSERT_EQ(gemma.ropes.size(), 2U);
  EXPECT_EQ(gemma.ropes[0].theta, 1e6);
  EXPECT_EQ(gemma.ropes[0].factor, 8.0);
  EXPECT_EQ(gemma.ropes[1].theta, 1e4);
  EXPECT_EQ(gemma.ropes[1].type, "default");
  EXPECT_EQ(gemma.layers[0].rope, 1U);
  EXPECT_EQ(gemma.layers[5].rope, 0U);
  EXPECT_EQ(gemma.logits_softcap, 0.0);
  expect_refused(gemma3_text_family(), R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping");
}

TEST(Rotary, OfGptOssAndMixtralHaveTheirOwnDefaults) {
  const RopeConfig gpt = decoder(gpt_oss_family()).ropes.at(0);
  EXPECT_EQ(gpt.type, "yarn");
  EXPECT_EQ(gpt.theta, 150000.0);
  EXPECT_EQ(gpt.factor, 32.0);
  EXPECT_EQ(gpt.original_max_position_embeddings, 4096);
  EXPECT_FALSE(gpt.truncate);
  EXPECT_EQ(decoder(mixtral_family()).ropes.at(0).theta, 1e6);
}

TEST(Rotary, OfPhi3MayTurnAPartOfAHeadAndIsNotScaled) {
  EXPECT_EQ(
      decoder(phi3_family(), R"({"head_dim": 8, "partial_rotary_factor": 0.75})").ropes.at(0).partial_rotary_factor,
      0.75);
  for (const char* part : {"0", "0.1", "0.375", "1.5"}) { // of 8: none, none, three, twelve
    expect_refused(phi3_family(), concat(R"({"head_dim": 8, "partial_rotary_factor": )", part, "}"), "partial_rotary");
  }
  expect_refused(phi3_family(), R"({"rope_scaling": {"type": "longrope", "factor": 2}})", "rope_type");
  expect_refused(phi3_family(), R"({"rope_scaling": {"type": "yarn", "factor": 2}})", "rope_type");
}

TEST(Phi3, RefusesDropoutThatNothingHereDoes) {
  expect_refused(phi3_family(), R"({"resid_pdrop": 0.1})", "resid_pdrop");
  expect_refused(phi3_family(), R"({"embd_pdrop": 0.1})", "embd_pdrop");
  EXPECT_EQ(decoder(phi3_family(), R"({"attention_dropout": 0.1})").attention_dropout, 0.1);
  expect_refused(phi3_family(), R"({"attention_dropout": 1.1})", "attention_dropout");
}

TEST(KeyValueHeads, AreTheClasssDefaultAndTheQueryHeadsWhereNull) {
  const auto without = [](const Family& family) {
    Json document = config().json();
    document.erase("num_key_value_heads");
    return family.decoder(HfConfig::parse(document.dump(), "config.json"))->num_key_value_heads;
  };
  EXPECT_EQ(without(llama_family()), 32);
  EXPECT_EQ(without(mistral_family()), 8);
  EXPECT_EQ(without(gemma_family()), 16);
  EXPECT_EQ(without(qwen2_moe_family()), 16);
  EXPECT_EQ(without(qwen3_moe_family()), 4);
  EXPECT_EQ(decoder(mistral_family(), R"({"num_key_value_heads": null})").num_key_value_heads, 32);
}

} // namespace
} // namespace tieshard

#include <algorithm>
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::raised;
using Row = std::pair<std::string, Shape>;
using Rows = std::vector<Row>;

HfConfig config(const char* base, const char* changes = "{}") {
  Json document = Json::parse(base);
  document.merge_patch(Json::parse(changes));
  return HfConfig::parse(document.dump(), "config.json");
}

Rows rows(const Family& family, const HfConfig& config) {
  Rows result;
  for (const ParameterInfo& info : family.table(config)) {
    result.emplace_back(info.fqn, info.shape);
  }
  return result;
}

std::vector<std::string> unit_names(const Family& family, const HfConfig& config) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : family.units(config)) {
    EXPECT_EQ(unit.prefix, unit.name + ".");
    names.push_back(unit.name);
  }
  return names;
}

std::vector<std::string> tie_texts(const Family& family, const HfConfig& config) {
  std::vector<std::string> texts;
  for (const FamilyTie& tie : family.ties(config)) {
    texts.push_back(tie.alias + (tie.always ? " == " : " = ") + tie.canonical);
  }
  return texts;
}

constexpr const char* kGemma = R"({"model_type": "gemma", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6})";
constexpr const char* kT5 = R"({"model_type": "t5", "vocab_size": 11, "d_model": 8, "d_kv": 3, "d_ff": 12,
  "num_layers": 1, "num_heads": 2, "relative_attention_num_buckets": 5})";
constexpr const char* kAlbert = R"({"model_type": "albert", "vocab_size": 11, "embedding_size": 4, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 6, "num_attention_heads": 2, "max_position_embeddings": 16})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 11, "n_positions": 16, "n_embd": 8, "n_layer": 1,
  "n_head": 2})";
constexpr const char* kGptOss = R"({"model_type": "gpt_oss", "vocab_size": 11, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 1, "num_local_experts": 3, "num_experts_per_tok": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6})";

// The rows below are what transformers 5.24 prints for named_parameters(remove_duplicate=False) of the class.

TEST(GemmaTable, HasLlamasNamesAndAnOwnHeadSize) {
  EXPECT_EQ(rows(gemma_family(), config(kGemma)),
            (Rows{
                {"model.embed_tokens.weight", {11, 8}},
                {"model.layers.0.self_attn.q_proj.weight", {12, 8}},
                {"model.layers.0.self_attn.k_proj.weight", {6, 8}},
                {"model.layers.0.self_attn.v_proj.weight", {6, 8}},
                {"model.layers.0.self_attn.o_proj.weight", {8, 12}},
                {"model.layers.0.mlp.gate_proj.weight", {12, 8}},
                {"model.layers.0.mlp.up_proj.weight", {12, 8}},
                {"model.layers.0.mlp.down_proj.weight", {8, 12}},
                {"model.layers.0.input_layernorm.weight", {8}},
                {"model.layers.0.post_attention_layernorm.weight", {8}},
                {"model.norm.weight", {8}},
                {"lm_head.weight", {11, 8}},
            }));
}

TEST(GemmaFamily, IsTiedByDefaultAndHas256ElementsInAHeadUnlessToldOtherwise) {
  EXPECT_TRUE(gemma_family().tied_by_default());
  EXPECT_THAT(rows(gemma_family(), config(kGemma, R"({"head_dim": null})")),
              Contains(Row("model.layers.0.self_attn.k_proj.weight", {256, 8})));
}

TEST(T5Table, ListsBothStacksWithThePositionBiasInTheirFirstBlock) {
  EXPECT_EQ(rows(t5_family(), config(kT5)),
            (Rows{
                {"shared.weight", {11, 8}},
                {"encoder.embed_tokens.weight", {11, 8}},
                {"encoder.block.0.layer.0.SelfAttention.q.weight", {6, 8}},
                {"encoder.block.0.layer.0.SelfAttention.k.weight", {6, 8}},
                {"encoder.block.0.layer.0.SelfAttention.v.weight", {6, 8}},
                {"encoder.block.0.layer.0.SelfAttention.o.weight", {8, 6}},
                {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", {5, 2}},
                {"encoder.block.0.layer.0.layer_norm.weight", {8}},
                {"encoder.block.0.layer.1.DenseReluDense.wi.weight", {12, 8}},
                {"encoder.block.0.layer.1.DenseReluDense.wo.weight", {8, 12}},
                {"encoder.block.0.layer.1.layer_norm.weight", {8}},
                {"encoder.final_layer_norm.weight", {8}},
                {"decoder.embed_tokens.weight", {11, 8}},
                {"decoder.block.0.layer.0.SelfAttention.q.weight", {6, 8}},
                {"decoder.block.0.layer.0.SelfAttention.k.weight", {6, 8}},
                {"decoder.block.0.layer.0.SelfAttention.v.weight", {6, 8}},
                {"decoder.block.0.layer.0.SelfAttention.o.weight", {8, 6}},
                {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", {5, 2}},
                {"decoder.block.0.layer.0.layer_norm.weight", {8}},
                {"decoder.block.0.layer.1.EncDecAttention.q.weight", {6, 8}},
                {"decoder.block.0.layer.1.EncDecAttention.k.weight", {6, 8}},
                {"decoder.block.0.layer.1.EncDecAttention.v.weight", {6, 8}},
                {"decoder.block.0.layer.1.EncDecAttention.o.weight", {8, 6}},
                {"decoder.block.0.layer.1.layer_norm.weight", {8}},
                {"decoder.block.0.layer.2.DenseReluDense.wi.weight", {12, 8}},
                {"decoder.block.0.layer.2.DenseReluDense.wo.weight", {8, 12}},
                {"decoder.block.0.layer.2.layer_norm.weight", {8}},
                {"decoder.final_layer_norm.weight", {8}},
                {"lm_head.weight", {11, 8}},
            }));
}

TEST(T5Table, HasTwoInputMatricesInVersionOneOne) {
  const Rows gated = rows(t5_family(), config(kT5, R"({"feed_forward_proj": "gated-gelu"})"));
  EXPECT_THAT(gated, Contains(Row("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", {12, 8})));
  EXPECT_THAT(gated, Contains(Row("decoder.block.0.layer.2.DenseReluDense.wi_1.weight", {12, 8})));
  EXPECT_THAT(gated, Not(Contains(Row("encoder.block.0.layer.1.DenseReluDense.wi.weight", {12, 8}))));
}

TEST(T5Family, TiesItsEmbeddingsAlwaysAndItsHeadByTheFlag) {
  EXPECT_THAT(tie_texts(t5_family(), config(kT5)),
              ElementsAre("encoder.embed_tokens.weight == shared.weight",
                          "decoder.embed_tokens.weight == shared.weight",
                          "lm_head.weight = shared.weight"));
  EXPECT_TRUE(t5_family().tied_by_default());
}

TEST(T5Family, MakesUnitsOfTheBlocksOfBothStacks) {
  EXPECT_THAT(unit_names(t5_family(), config(kT5, R"({"num_decoder_layers": 2})")),
              ElementsAre("encoder.block.0", "decoder.block.0", "decoder.block.1"));
}

TEST(T5Family, RefusesAFeedForwardThatIsNone) {
  for (const char* kind : {R"({"feed_forward_proj": "wide-gelu"})", R"({"feed_forward_proj": "gated-gelu-new"})"}) {
    const auto refused = raised<InputError>([kind] { t5_family().table(config(kT5, kind)); });
    ASSERT_TRUE(refused.has_value()) << kind;
    EXPECT_EQ(refused->code, Code::kConfigValue);
    EXPECT_THAT(refused->where, HasSubstr("feed_forward_proj"));
  }
}

TEST(AlbertTable, ListsALayerOfAGroupOnceHoweverOftenItRuns) {
  const std::string layer = "albert.encoder.albert_layer_groups.0.albert_layers.0.";
  EXPECT_EQ(rows(albert_family(), config(kAlbert)),
            (Rows{
                {"albert.embeddings.word_embeddings.weight", {11, 4}},
                {"albert.embeddings.position_embeddings.weight", {16, 4}},
                {"albert.embeddings.token_type_embeddings.weight", {2, 4}},
                {"albert.embeddings.LayerNorm.weight", {4}},
                {"albert.embeddings.LayerNorm.bias", {4}},
                {"albert.encoder.embedding_hidden_mapping_in.weight", {8, 4}},
                {"albert.encoder.embedding_hidden_mapping_in.bias", {8}},
                {layer + "full_layer_layer_norm.weight", {8}},
                {layer + "full_layer_layer_norm.bias", {8}},
                {layer + "attention.query.weight", {8, 8}},
                {layer + "attention.query.bias", {8}},
                {layer + "attention.key.weight", {8, 8}},
                {layer + "attention.key.bias", {8}},
                {layer + "attention.value.weight", {8, 8}},
                {layer + "attention.value.bias", {8}},
                {layer + "attention.dense.weight", {8, 8}},
                {layer + "attention.dense.bias", {8}},
                {layer + "attention.LayerNorm.weight", {8}},
                {layer + "attention.LayerNorm.bias", {8}},
                {layer + "ffn.weight", {12, 8}},
                {layer + "ffn.bias", {12}},
                {layer + "ffn_output.weight", {8, 12}},
                {layer + "ffn_output.bias", {8}},
                {"predictions.bias", {11}},
                {"predictions.LayerNorm.weight", {4}},
                {"predictions.LayerNorm.bias", {4}},
                {"predictions.dense.weight", {4, 8}},
                {"predictions.dense.bias", {4}},
                {"predictions.decoder.weight", {11, 4}},
                {"predictions.decoder.bias", {11}},
            }));
}

TEST(AlbertFamily, TiesTheHeadsWeightAndItsBias) {
  EXPECT_THAT(tie_texts(albert_family(), config(kAlbert)),
              ElementsAre("predictions.decoder.weight = albert.embeddings.word_embeddings.weight",
                          "predictions.decoder.bias = predictions.bias"));
  EXPECT_TRUE(albert_family().tied_by_default());
}

TEST(AlbertFamily, MakesOneUnitOfEachGroup) {
  const HfConfig two = config(kAlbert, R"({"num_hidden_groups": 2, "inner_group_num": 3})");
  EXPECT_THAT(unit_names(albert_family(), two),
              ElementsAre("albert.encoder.albert_layer_groups.0", "albert.encoder.albert_layer_groups.1"));
  EXPECT_THAT(rows(albert_family(), two),
              Contains(Row("albert.encoder.albert_layer_groups.1.albert_layers.2.ffn.bias", {12})));
}

TEST(Gpt2Table, HasConv1dWeightsAsInByOut) {
  EXPECT_EQ(rows(gpt2_family(), config(kGpt2)),
            (Rows{
                {"transformer.wte.weight", {11, 8}},
                {"transformer.wpe.weight", {16, 8}},
                {"transformer.h.0.ln_1.weight", {8}},
                {"transformer.h.0.ln_1.bias", {8}},
                {"transformer.h.0.attn.c_attn.weight", {8, 24}},
                {"transformer.h.0.attn.c_attn.bias", {24}},
                {"transformer.h.0.attn.c_proj.weight", {8, 8}},
                {"transformer.h.0.attn.c_proj.bias", {8}},
                {"transformer.h.0.ln_2.weight", {8}},
                {"transformer.h.0.ln_2.bias", {8}},
                {"transformer.h.0.mlp.c_fc.weight", {8, 32}},
                {"transformer.h.0.mlp.c_fc.bias", {32}},
                {"transformer.h.0.mlp.c_proj.weight", {32, 8}},
                {"transformer.h.0.mlp.c_proj.bias", {8}},
                {"transformer.ln_f.weight", {8}},
                {"transformer.ln_f.bias", {8}},
                {"lm_head.weight", {11, 8}},
            }));
}

TEST(Gpt2Family, KnowsTheMasksOfOldFilesForBuffersAndNoParameterForOne) {
  EXPECT_TRUE(gpt2_family().is_known_buffer("transformer.h.0.attn.bias"));
  EXPECT_TRUE(gpt2_family().is_known_buffer("h.11.attn.masked_bias"));
  for (const ParameterInfo& parameter : gpt2_family().table(config(kGpt2, R"({"add_cross_attention": true})"))) {
    EXPECT_FALSE(gpt2_family().is_known_buffer(parameter.fqn)) << parameter.fqn;
  }
}

TEST(Gpt2Family, TakesTheNamesThatOtherFamiliesHaveForItsSizes) {
  const HfConfig other = config(
      kGpt2, R"({"n_embd": null, "n_layer": null, "n_head": null, "n_positions": null, "n_inner": 20, "hidden_size": 6,
                 "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 4})");
  EXPECT_THAT(rows(gpt2_family(), other),
              AllOf(Contains(Row("transformer.wpe.weight", {4, 6})),
                    Contains(Row("transformer.h.1.mlp.c_fc.weight", {6, 20}))));
  EXPECT_THAT(unit_names(gpt2_family(), other), ElementsAre("transformer.h.0", "transformer.h.1"));
}

TEST(GptOssTable, HoldsTheExpertsOfALayerInOneTensor) {
  EXPECT_EQ(rows(gpt_oss_family(), config(kGptOss)),
            (Rows{
                {"model.embed_tokens.weight", {11, 8}},
                {"model.layers.0.self_attn.sinks", {4}},
                {"model.layers.0.self_attn.q_proj.weight", {24, 8}},
                {"model.layers.0.self_attn.q_proj.bias", {24}},
                {"model.layers.0.self_attn.k_proj.weight", {12, 8}},
                {"model.layers.0.self_attn.k_proj.bias", {12}},
                {"model.layers.0.self_attn.v_proj.weight", {12, 8}},
                {"model.layers.0.self_attn.v_proj.bias", {12}},
                {"model.layers.0.self_attn.o_proj.weight", {8, 24}},
                {"model.layers.0.self_attn.o_proj.bias", {8}},
                {"model.layers.0.mlp.router.weight", {3, 8}},
                {"model.layers.0.mlp.router.bias", {3}},
                {"model.layers.0.mlp.experts.gate_up_proj", {3, 8, 24}},
                {"model.layers.0.mlp.experts.gate_up_proj_bias", {3, 24}},
                {"model.layers.0.mlp.experts.down_proj", {3, 12, 8}},
                {"model.layers.0.mlp.experts.down_proj_bias", {3, 8}},
                {"model.layers.0.input_layernorm.weight", {8}},
                {"model.layers.0.post_attention_layernorm.weight", {8}},
                {"model.norm.weight", {8}},
                {"lm_head.weight", {11, 8}},
            }));
  EXPECT_FALSE(gpt_oss_family().tied_by_default());
}

TEST(Families, RefuseSizesThatNoModelHas) {
  const std::vector<std::pair<const Family*, HfConfig>> bad = {
      {&gemma_family(), config(kGemma, R"({"vocab_size": 0})")},
      {&gemma_family(), config(kGemma, R"({"num_hidden_layers": 1000000})")},
      {&gemma_family(), config(kGemma, R"({"num_key_value_heads": 3})")},
      {&t5_family(), config(kT5, R"({"num_decoder_layers": 0})")},
      {&t5_family(), config(kT5, R"({"d_kv": 1099511627776, "num_heads": 1099511627776})")},
      {&albert_family(), config(kAlbert, R"({"num_hidden_groups": 1099511627776, "inner_group_num": 4})")},
      {&albert_family(), config(kAlbert, R"({"num_attention_heads": 3})")},
      {&gpt2_family(), config(kGpt2, R"({"n_head": 3})")},
      {&gpt2_family(), config(kGpt2, R"({"vocab_size": 1099511627776, "n_embd": 1099511627776})")},
      {&gpt_oss_family(), config(kGptOss, R"({"num_local_experts": 0})")},
      {&gpt_oss_family(), config(kGptOss, R"({"num_local_experts": 1099511627776, "hidden_size": 1099511627776})")},
  };
  for (const auto& [family, sizes] : bad) {
    const auto refused = raised<InputError>([&] { family->table(sizes); });
    ASSERT_TRUE(refused.has_value()) << family->name() << sizes.json();
    EXPECT_EQ(refused->code, Code::kConfigValue);
  }
}

TEST(Families, RefuseConfigsWithoutASizeThatHasNoDefault) {
  const std::vector<std::pair<const Family*, HfConfig>> bad = {
      {&gemma_family(), config(kGemma, R"({"hidden_size": null})")},
      {&t5_family(), config(kT5, R"({"d_model": null})")},
      {&albert_family(), config(kAlbert, R"({"vocab_size": null})")},
      {&gpt2_family(), config(kGpt2, R"({"n_layer": null})")},
      {&gpt_oss_family(), config(kGptOss, R"({"intermediate_size": null})")},
  };
  for (const auto& [family, sizes] : bad) {
    const auto refused = raised<InputError>([&] { family->table(sizes); });
    ASSERT_TRUE(refused.has_value()) << family->name();
    EXPECT_EQ(refused->code, Code::kConfigMissingKey);
  }
}

} // namespace
} // namespace tieshard

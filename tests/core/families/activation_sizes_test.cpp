#include "tieshard/core/families/activation_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

using ::testing::ElementsAre;

/// Four query heads of size 6 over two key/value heads.
std::optional<ActivationSizes> of_llama(const std::string& more = "") {
  return activation_sizes(HfConfig::parse(
      concat(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 11, "hidden_size": 8,
        "intermediate_size": 20, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 6)",
             more,
             "}"),
      "config.json"));
}

TEST(ActivationSizesOf, LlamaAreThoseOfEveryTensorThatALayerKeeps) {
  const auto sizes = of_llama();
  ASSERT_TRUE(sizes.has_value());
  EXPECT_EQ(sizes->vocab, 11);
  EXPECT_EQ(sizes->hidden, 8);
  EXPECT_EQ(sizes->layers, 5);
  EXPECT_THAT(sizes->kept, ElementsAre(8, 8, 8, 8, 24, 24, 24, 24, 20, 20, 20));
  EXPECT_EQ(sizes->kept_float32, 2 + 4);
  EXPECT_THAT(sizes->backward, ElementsAre(20, 20, 20, 20, 8, 8));
}

TEST(ActivationSizesOf, AttentionWithDropoutAreNotKnown) {
  EXPECT_TRUE(of_llama(R"(, "attention_dropout": 0.0)").has_value());
  EXPECT_FALSE(of_llama(R"(, "attention_dropout": 0.1)").has_value());
}

/// The same sizes, of another family.
std::optional<ActivationSizes> of(const std::string& model_type, const std::string& more = "") {
  return activation_sizes(
      HfConfig::parse(concat(R"({"vocab_size": 11, "hidden_size": 8, "intermediate_size": 20, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "model_type": ")",
                             model_type,
                             "\"",
                             more,
                             "}"),
                      "config.json"));
}

TEST(ActivationSizesOf, NormsOnQueriesKeysAndBranchesAreThereToo) {
  const auto qwen = of("qwen3");
  ASSERT_TRUE(qwen.has_value());
  EXPECT_THAT(qwen->kept, ElementsAre(8, 8, 8, 8, 24, 24, 24, 24, 20, 20, 20, 24, 12));
  EXPECT_EQ(qwen->kept_float32, 2 + 4 + 4 + 2);
  const auto gemma = of("gemma3_text");
  ASSERT_TRUE(gemma.has_value());
  EXPECT_THAT(gemma->kept, ElementsAre(8, 8, 8, 8, 24, 24, 24, 24, 20, 20, 20, 8, 8, 24, 12));
  EXPECT_EQ(gemma->kept_float32, 2 + 4 + 2 + 4 + 2);
}

TEST(ActivationSizesOf, OtherDenseDecodersAreThoseOfLlama) {
  for (const char* model_type : {"mistral", "qwen2", "gemma"}) {
    const auto sizes = of(model_type);
    ASSERT_TRUE(sizes.has_value()) << model_type;
    EXPECT_EQ(sizes->kept, of("llama")->kept) << model_type;
  }
}

TEST(ActivationSizesOf, WeightsOfAttentionThatAreKeptAreNotKnown) {
  EXPECT_FALSE(of("gemma2").has_value());
  EXPECT_TRUE(of("gemma2", R"(, "attn_logit_softcapping": null)").has_value());
}

TEST(ActivationSizesOf, MixturesAreNotKnown) {
  EXPECT_FALSE(of("qwen3_moe").has_value());
  EXPECT_FALSE(of("mixtral").has_value());
  EXPECT_FALSE(of("gpt_oss").has_value());
  EXPECT_TRUE(of("qwen3_moe", R"(, "num_experts": 0)").has_value());
}

TEST(SizesWithoutActivations, AreThoseOfEveryDecoder) {
  const auto sizes = sizes_without_activations(HfConfig::parse(
      R"({"model_type": "mixtral", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 20, "num_hidden_layers": 5,
          "num_attention_heads": 4, "num_key_value_heads": 2})",
      "config.json"));
  ASSERT_TRUE(sizes.has_value());
  EXPECT_EQ(sizes->vocab, 11);
  EXPECT_EQ(sizes->hidden, 8);
  EXPECT_EQ(sizes->layers, 5);
  EXPECT_TRUE(sizes->kept.empty());
  EXPECT_TRUE(sizes->backward.empty());
  EXPECT_FALSE(sizes_without_activations(HfConfig::parse(R"({"model_type": "t5"})", "config.json")).has_value());
}

TEST(ActivationSizesOf, FamiliesWithoutAModelClassAreNotKnown) {
  EXPECT_FALSE(activation_sizes(HfConfig::parse(R"({"model_type": "gpt2", "vocab_size": 11, "n_positions": 16,
    "n_embd": 8, "n_layer": 1, "n_head": 2})",
                                                "config.json"))
                   .has_value());
  EXPECT_FALSE(activation_sizes(HfConfig::parse(R"({"model_type": "nobody_knows"})", "config.json")).has_value());
}

} // namespace
} // namespace tieshard

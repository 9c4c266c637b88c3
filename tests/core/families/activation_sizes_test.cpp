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

TEST(ActivationSizesOf, FamiliesWithoutAModelClassAreNotKnown) {
  EXPECT_FALSE(activation_sizes(HfConfig::parse(R"({"model_type": "gpt2", "vocab_size": 11, "n_positions": 16,
    "n_embd": 8, "n_layer": 1, "n_head": 2})",
                                                "config.json"))
                   .has_value());
  EXPECT_FALSE(activation_sizes(HfConfig::parse(R"({"model_type": "nobody_knows"})", "config.json")).has_value());
}

} // namespace
} // namespace tieshard

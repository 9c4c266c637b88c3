#include "tieshard/core/families/family.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::raised;

HfConfig config(const std::string& text) {
  return HfConfig::parse(text, "config.json");
}

TEST(FindFamily, KnowsLlamaByModelTypeAndElseByArchitecture) {
  for (const char* text : {R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})",
                           R"({"model_type": "llama"})",
                           R"({"architectures": ["LlamaForCausalLM"]})"}) {
    const Family* family = find_family(config(text));
    ASSERT_NE(family, nullptr) << text;
    EXPECT_EQ(family->name(), "llama");
  }
}

TEST(FindFamily, KnowsTheClassesWhoseParametersItLists) {
  const std::vector<std::array<const char*, 3>> known = {{"mistral", "mistral", "MistralForCausalLM"},
                                                         {"qwen2", "qwen2", "Qwen2ForCausalLM"},
                                                         {"qwen2_moe", "qwen2_moe", "Qwen2MoeForCausalLM"},
                                                         {"qwen3", "qwen3", "Qwen3ForCausalLM"},
                                                         {"qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM"},
                                                         {"mixtral", "mixtral", "MixtralForCausalLM"},
                                                         {"phi3", "phi3", "Phi3ForCausalLM"},
                                                         {"gemma", "gemma", "GemmaForCausalLM"},
                                                         {"gemma2", "gemma2", "Gemma2ForCausalLM"},
                                                         {"gemma3_text", "gemma3_text", "Gemma3ForCausalLM"},
                                                         {"t5", "t5", "T5ForConditionalGeneration"},
                                                         {"albert", "albert", "AlbertForMaskedLM"},
                                                         {"gpt2", "gpt2", "GPT2LMHeadModel"},
                                                         {"gpt_oss", "gpt_oss", "GptOssForCausalLM"}};
  for (const auto& [name, model_type, architecture] : known) {
    const Json both = {{"model_type", model_type}, {"architectures", {architecture}}};
    const Family* family = find_family(config(both.dump()));
    ASSERT_NE(family, nullptr) << name;
    EXPECT_EQ(family->name(), name);
    const Json other = {{"model_type", model_type}, {"architectures", {"SomethingForTokenClassification"}}};
    EXPECT_EQ(find_family(config(other.dump())), nullptr) << name;
  }
}

TEST(FindFamily, IsNullForAFamilyInsideAMultimodalWrapper) {
  EXPECT_EQ(find_family(config(R"({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
                                   "text_config": {"model_type": "llama"}})")),
            nullptr);
}

TEST(FindFamily, IsNullForModelsWithOtherParameters) {
  EXPECT_EQ(find_family(config(R"({"model_type": "bert"})")), nullptr);
  EXPECT_EQ(find_family(config("{}")), nullptr);
  // A classifier has a score head in place of lm_head: the causal table would ask for what is not there.
  EXPECT_EQ(find_family(config(R"({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]})")),
            nullptr);
}

TEST(RequireFamily, RefusesNamingWhatItGotAndWhatIsKnown) {
  const auto refused =
      raised<InputError>([] { require_family(config(R"({"model_type": "t5", "architectures": ["T5Model"]})")); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kUnknownArchitecture);
  EXPECT_THAT(refused->why, AllOf(HasSubstr("t5"), HasSubstr("T5Model"), HasSubstr("llama"), HasSubstr("gpt_oss")));
  EXPECT_THAT(refused->fix, HasSubstr("docs/new_model.md"));
}

} // namespace
} // namespace tieshard

#include "tieshard/core/families/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(FindFamily, IsNullForModelsWithOtherParameters) {
  EXPECT_EQ(find_family(config(R"({"model_type": "t5"})")), nullptr);
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
  EXPECT_THAT(refused->why, AllOf(HasSubstr("t5"), HasSubstr("T5Model"), HasSubstr("llama")));
}

} // namespace
} // namespace tieshard

#include "tieshard/cli/lora_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"

namespace tieshard::cli {
namespace {

using ::testing::ElementsAre;
using testing::expect_refusal;

TEST(LoraFlag, ReadsPairsAndLists) {
  const LoraConfig config = lora_flag(
      "r=16,alpha=32,dropout=0.1,targets=q_proj,v_proj,save=norm,lm_head,exclude=up_proj,layers=0,2,rslora=true,init="
      "gaussian");
  EXPECT_EQ(config.rank, 16);
  EXPECT_EQ(config.alpha, 32);
  EXPECT_EQ(config.dropout, 0.1);
  EXPECT_THAT(config.targets.names, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(config.modules_to_save, ElementsAre("norm", "lm_head"));
  EXPECT_THAT(config.excluded.names, ElementsAre("up_proj"));
  EXPECT_THAT(config.layers_to_transform, ElementsAre(0, 2));
  EXPECT_TRUE(config.rslora);
  EXPECT_EQ(config.init, LoraInit::kGaussian);
}

TEST(LoraFlag, DefaultsAreThoseOfPeft) {
  const LoraConfig config = lora_flag("targets=all-linear");
  EXPECT_EQ(config.rank, 8);
  EXPECT_EQ(config.alpha, 8);
  EXPECT_EQ(config.dropout, 0);
  EXPECT_TRUE(config.targets.all_linear);
}

TEST(LoraFlag, ARegularExpressionMayHoldCommas) {
  EXPECT_EQ(lora_flag("targets-regex=.*q_{1,2}proj,r=4").targets.regex, ".*q_{1,2}proj");
}

TEST(LoraFlag, ARankThatIsTakenCanBeWrittenAndReadAgain) {
  const LoraConfig config = lora_flag(concat("targets=q,r=", kLargestLoraRank));
  EXPECT_EQ(LoraConfig::parse(config.to_json(), "adapter_config.json").rank, kLargestLoraRank);
}

TEST(LoraFlag, RefusesWhatCannotBe) {
  for (const auto& [text, where] : std::vector<std::pair<std::string, std::string>>{
           {"r=16", "targets"},
           {"", "--lora"},
           {"q_proj", "--lora"},
           {"r=0,targets=q", "--lora, r"},
           {"r=1.5,targets=q", "--lora, r"},
           {"r=2,r=3,targets=q", "--lora, r"},
           {"alpha=-1,targets=q", "--lora, alpha"},
           {"alpha=nan,targets=q", "--lora, alpha"},
           {"dropout=1,targets=q", "--lora, dropout"},
           {"rank=2,targets=q", "rank=2"},
           {"targets=q,,v", "targets"},
           {"targets=", "targets"},
           {"targets=q,targets-regex=q", "targets"},
           {"targets=q,layers=a", "--lora, layers"},
           {"targets=all-linear,layers=1", "--lora, layers"},
           {"targets=q,init=zeros", "--lora, init"},
           {"targets=q,rslora=1", "--lora, rslora"},
           {"r=1000001,targets=q", "expected a whole number from 1 to 1000000, got 1000001"},
           {"alpha=1e30,targets=q", "expected a number from 0 to 1000000000, got 1e30"},
           {"targets=all-linear,lm_head", "expected all-linear alone, or names, got all-linear,lm_head"},
       }) {
    expect_refusal([&] { lora_flag(text); }, Code::kBadFlag, {where});
  }
  expect_refusal([] { lora_flag("targets-regex=("); }, Code::kAdapterConfig, {"("});
}

} // namespace
} // namespace tieshard::cli

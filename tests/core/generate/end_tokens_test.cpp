#include "tieshard/core/generate/end_tokens.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Of a checkpoint with these two files; no generation_config.json where that is empty.
std::vector<std::int64_t> tokens_of(const std::string& config, const std::string& generation = "") {
  CheckpointFixture fixture(config);
  fixture.write({counting("w", {2})});
  if (!generation.empty()) {
    std::ofstream(fixture.path() / "generation_config.json") << generation;
  }
  return end_tokens(Checkpoint::open(fixture.path()));
}

TEST(EndTokens, AreThoseOfTheGenerationConfigElseOfTheConfig) {
  EXPECT_THAT(tokens_of(R"({"eos_token_id": 2})"), ElementsAre(2));
  EXPECT_THAT(tokens_of(R"({"eos_token_id": 2})", R"({"eos_token_id": [5, 7]})"), ElementsAre(5, 7));
  EXPECT_THAT(tokens_of(R"({"eos_token_id": 2})", R"({"eos_token_id": null})"), ElementsAre(2));
  EXPECT_THAT(tokens_of(R"({"eos_token_id": [2, 3]})", R"({"do_sample": true})"), ElementsAre(2, 3));
}

TEST(EndTokens, MayBeNone) {
  EXPECT_THAT(tokens_of("{}"), IsEmpty());
  EXPECT_THAT(tokens_of(R"({"eos_token_id": null})", "{}"), IsEmpty());
}

TEST(EndTokens, ThatAreNoTokensAreRefused) {
  for (const char* wrong :
       {R"({"eos_token_id": -1})", R"({"eos_token_id": "</s>"})", R"({"eos_token_id": [1, 2.5]})"}) {
    expect_refusal([&] { tokens_of("{}", wrong); }, Code::kConfigValue, {"generation_config.json, eos_token_id"});
  }
}

} // namespace
} // namespace tieshard::testing

#include "tieshard/core/ties/tie_flag.h"

#include <gtest/gtest.h>

#include "tieshard/core/ties/resolved_model.h"

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

std::optional<bool> changed(const std::string& config, bool with_head, const TieOptions& options = {}) {
  testing::CheckpointFixture fixture(config);
  fixture.write(testing::tiny_llama_tensors(with_head));
  const ResolvedModel model = resolve_model(fixture.path(), {.ties = options});
  return changed_tie_flag(model.ties, model.checkpoint);
}

TEST(TieFlag, ChangesWhereTheTiesDifferFromWhatTheConfigurationSays) {
  EXPECT_EQ(changed(testing::tied_config(), false), std::nullopt);
  EXPECT_EQ(changed(testing::untied_config(), true), std::nullopt);
  EXPECT_EQ(changed(testing::tied_config(), true, {.untied = {"lm_head.weight"}}), false);
  EXPECT_EQ(
      changed(testing::untied_config(), false, {.explicit_ties = {{"lm_head.weight", "model.embed_tokens.weight"}}}),
      true);
}

TEST(TieFlag, IsWrittenWhereTheFileHasIt) {
  const std::string top = R"({"model_type": "llama", "b": 1, "tie_word_embeddings": true, "a": 2})";
  const std::string written = with_tie_flag(top, HfConfig::parse(top, "config.json"), false);
  EXPECT_FALSE(HfConfig::parse(written, "config.json").tie_word_embeddings()->value);
  EXPECT_LT(written.find("\"b\""), written.find("\"a\"")) << "the order of the keys stays";
  const std::string nested = R"({"model_type": "llama", "text_config": {"tie_word_embeddings": true}})";
  const HfConfig changed =
      HfConfig::parse(with_tie_flag(nested, HfConfig::parse(nested, "config.json"), false), "config.json");
  EXPECT_FALSE(changed.tie_word_embeddings()->value);
  EXPECT_TRUE(changed.tie_word_embeddings()->is_nested());
  const std::string silent = R"({"model_type": "llama"})";
  EXPECT_TRUE(HfConfig::parse(with_tie_flag(silent, HfConfig::parse(silent, "config.json"), true), "config.json")
                  .tie_word_embeddings()
                  ->value);
}

} // namespace
} // namespace tieshard

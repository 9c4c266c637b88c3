#include "tieshard/cli/merge_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"
#include "tests/support/adapter_fixture.h"

namespace tieshard::testing {
namespace {

using ::testing::HasSubstr;

TEST(MergeAdapterVerb, SaysWhatItWrote) {
  CheckpointFixture base(tied_config());
  base.write(tiny_llama_tensors());
  CheckpointFixture adapter;
  write_adapter(adapter, adapter_config(R"(["q_proj"])"), lora_pair("model.layers.0.self_attn.q_proj", 4, 4));
  const std::string out = (base.path() / "merged").string();
  const Answer shown = run({"merge-adapter", base.path().string(), adapter.path().string(), out});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("11 tensors: 1 with the adapter, 0 replaced"));
  const Answer again = run({"merge-adapter", base.path().string(), adapter.path().string(), out});
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.err, HasSubstr("[output-exists]"));
  const Answer json = run({"merge-adapter", base.path().string(), adapter.path().string(), out + "2", "--json"});
  EXPECT_EQ(json.json()["merged"], 1);
}

TEST(MergeAdapterVerb, TakesTheFlagThatItRecommends) {
  CheckpointFixture base(tied_config());
  base.write(tiny_llama_tensors());
  CheckpointFixture adapter;
  const std::string embed = "base_model.model.model.embed_tokens.";
  write_adapter(adapter,
                adapter_config(R"(["embed_tokens"])"),
                {counting(embed + "lora_embedding_A", {2, 6}), counting(embed + "lora_embedding_B", {4, 2})});
  std::vector<std::string> words{
      "merge-adapter", base.path().string(), adapter.path().string(), (base.path() / "merged").string()};
  const Answer refused = run(words);
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--lora-tied both"));
  words.insert(words.end(), {"--lora-tied", "both"});
  const Answer merged = run(words);
  EXPECT_EQ(merged.status, 0) << merged.err;
}

} // namespace
} // namespace tieshard::testing

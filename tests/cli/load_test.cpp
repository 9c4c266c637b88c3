#include "tieshard/cli/load.h"

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/checkpoint/safetensors_file.h"

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Answer;
using testing::CheckpointFixture;
using testing::counting;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run;
using testing::tied_config;
using testing::tiny_llama_tensors;
using testing::untied_config;

class LoadVerb : public ::testing::Test {
 protected:
  LoadVerb() : model_(tied_config()) {
    model_.write(tiny_llama_tensors());
  }

  Answer load(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"load", model_.path()});
    return run(flags);
  }

  CheckpointFixture model_;
};

/// The entry of a parameter, by name or alias.
nlohmann::json entry_of(const nlohmann::json& rank, const std::string& fqn) {
  for (const auto& entry : rank["ledger"]) {
    const std::vector<std::string> aliases = entry["aliases"];
    if (entry["name"] == fqn || std::ranges::find(aliases, fqn) != aliases.end()) {
      return entry;
    }
  }
  return {};
}

TEST_F(LoadVerb, ShowsARowForEachRankAndWhereItsElementsCameFrom) {
  const Answer answer = load({"--ranks", "3"});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.err, IsEmpty());
  EXPECT_THAT(answer.out, HasSubstr("LlamaForCausalLM, 196 parameters in 11 tensors; 3 ranks, shard dim: last\n"));
  EXPECT_THAT(answer.out, AllOf(HasSubstr("\n   0 "), HasSubstr("\n   1 "), HasSubstr("\n   2 ")));
  EXPECT_THAT(answer.out, HasSubstr("\n  from files  196  plain\n"));
}

TEST_F(LoadVerb, TracesEveryElementOnceWhateverTheRanks) {
  for (const char* ranks : {"1", "2", "3", "7"}) {
    for (const char* dim : {"last", "first"}) {
      const auto document = load({"--ranks", ranks, "--shard-dim", dim, "--json"}).json();
      std::int64_t elements = 0;
      for (const auto& rank : document["per_rank"]) {
        std::int64_t of_entries = 0;
        for (const auto& entry : rank["ledger"]) {
          of_entries += entry["elements"].get<std::int64_t>();
        }
        EXPECT_EQ(of_entries, rank["elements"]);
        elements += of_entries;
      }
      EXPECT_EQ(document["per_rank"].size(), std::stoul(ranks));
      EXPECT_EQ(elements, 196) << ranks << " ranks, " << dim;
    }
  }
}

TEST_F(LoadVerb, GivesTheFirstValuesOfEachPart) {
  const auto document = load({"--ranks", "2", "--json", "--values", "3"}).json();
  const auto second = entry_of(document["per_rank"][1], "lm_head.weight");
  EXPECT_EQ(second["name"], "model.embed_tokens.weight");
  EXPECT_EQ(second["dim"], 1);
  EXPECT_EQ(second["shape"], (std::vector<int>{6, 2}));
  EXPECT_EQ(second["whole_shape"], (std::vector<int>{6, 4}));
  EXPECT_EQ(second["values"], (std::vector<double>{2, 3, 6})); // element i of the whole is i
}

TEST_F(LoadVerb, LoadsOneRankAlone) {
  const auto document = load({"--ranks", "65536", "--rank", "1", "--json"}).json();
  ASSERT_EQ(document["per_rank"].size(), 1U);
  EXPECT_EQ(document["per_rank"][0]["rank"], 1);
  EXPECT_THAT(load({"--ranks", "2", "--rank", "2"}).err, AllOf(HasSubstr("[bad-flag]"), HasSubstr("0 to 1")));
  EXPECT_THAT(load({"--ranks", "2000"}).err, AllOf(HasSubstr("[bad-flag]"), HasSubstr("--rank")));
}

TEST_F(LoadVerb, LoadsInTheDtypeOfTheFileUnlessAskedForAnother) {
  CheckpointFixture mixed(tied_config());
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors[0] = testing::as_bf16(tensors[0]);
  mixed.write(tensors);
  const auto stored = run({"load", mixed.path(), "--ranks", "1", "--json"}).json()["per_rank"][0];
  EXPECT_EQ(entry_of(stored, "lm_head.weight")["dtype"], "BF16");
  EXPECT_EQ(entry_of(stored, "model.norm.weight")["dtype"], "F32");
  const auto asked =
      run({"load", mixed.path(), "--ranks", "1", "--json", "--param-dtype", "float64"}).json()["per_rank"][0];
  EXPECT_EQ(entry_of(asked, "lm_head.weight")["dtype"], "F64");
}

TEST_F(LoadVerb, WritesThePartsAndOverwritesNothing) {
  const fs::path out = model_.path() / "shards";
  ASSERT_EQ(load({"--ranks", "2", "--out", out.string() + "/"}).status, 0);
  EXPECT_FALSE(fs::exists(out.string() + ".partial"));
  const SafetensorsFile file = SafetensorsFile::open(out / "rank-00001-of-00002.safetensors");
  EXPECT_EQ(file.header().tensors.size(), 11U);
  ASSERT_NE(file.find("model.embed_tokens.weight"), nullptr);
  EXPECT_EQ(file.find("model.embed_tokens.weight")->shape, (Shape{6, 2}));
  EXPECT_EQ(file.header().metadata.at("rank"), "1");
  EXPECT_THAT(file.header().metadata.at("dims"), HasSubstr("\"model.embed_tokens.weight\":1"));
  const Answer again = load({"--ranks", "2", "--out", out});
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.err, HasSubstr("[output-exists]"));
}

TEST_F(LoadVerb, LeavesNoDirectoryWhenARankFails) {
  const fs::path out = model_.path() / "shards";
  EXPECT_EQ(load({"--ranks", "2", "--out", out, "--host-ram-per-rank", "1KiB"}).status, 2);
  EXPECT_FALSE(fs::exists(out));
  EXPECT_FALSE(fs::exists(out.string() + ".partial"));
}

TEST_F(LoadVerb, SaysOnceWhatFailsOnEveryRank) {
  const Answer answer = load({"--ranks", "3", "--host-ram-per-rank", "1KiB"});
  EXPECT_EQ(answer.status, 2);
  const std::size_t first = answer.err.find("[host-memory]");
  ASSERT_NE(first, std::string::npos) << answer.err;
  EXPECT_EQ(answer.err.find("[host-memory]", first + 1), std::string::npos) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("rank 0, 1, 2 of 3"));
  EXPECT_THAT(answer.out, IsEmpty());
}

TEST_F(LoadVerb, WarnsAndListsWhatIsNotUsed) {
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.push_back(counting("stray.weight", {2}));
  CheckpointFixture model(tied_config());
  model.write(tensors);
  const Answer text = run({"load", model.path(), "--ranks", "2"});
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.err, HasSubstr("[unused-tensor]"));
  EXPECT_THAT(text.out, HasSubstr("unused        1  stray.weight"));
  const auto document = run({"load", model.path(), "--ranks", "2", "--json"}).json();
  EXPECT_EQ(document["unused"], (std::vector<std::string>{"stray.weight"}));
  ASSERT_EQ(document["findings"].size(), 1U); // once, not once a rank
}

TEST_F(LoadVerb, RefusesWhatDoctorRefuses) {
  CheckpointFixture model(untied_config());
  model.write(tiny_llama_tensors());
  const Answer answer = run({"load", model.path(), "--ranks", "2", "--json"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("[missing-parameter]"));
  EXPECT_THAT(answer.out, IsEmpty());
}

TEST_F(LoadVerb, TakesADimensionThatTheParameterHasNotForABadFlag) {
  const Answer answer = load({"--ranks", "2", "--dim", "model.norm.weight=1"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("[bad-shard-dim]"));
}

TEST_F(LoadVerb, SaysWhichRanksThereAre) {
  const Answer above = load({"--ranks", "2", "--rank", "2"});
  EXPECT_EQ(above.status, 2);
  EXPECT_THAT(above.err, AllOf(HasSubstr("[bad-flag]"), HasSubstr("expected 0 to 1, got 2")));
  const Answer below = load({"--ranks", "2", "--rank", "-1"});
  EXPECT_EQ(below.status, 2);
  EXPECT_THAT(below.err, AllOf(HasSubstr("where: --rank\n"), HasSubstr("from 0 to 65535, got -1"), HasSubstr("fix:")));
}

TEST_F(LoadVerb, ShowsValuesWithJsonOnly) {
  const Answer answer = load({"--ranks", "1", "--values", "3"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, AllOf(HasSubstr("[bad-flag]"), HasSubstr("--json")));
}

TEST_F(LoadVerb, TakesAnOutputWithoutAParentForABadFlag) {
  const Answer answer = load({"--ranks", "1", "--out", model_.path() / "no" / "such"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, AllOf(HasSubstr("[bad-flag]"), HasSubstr("no directory"), HasSubstr("--out")));
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/cli/diff.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using testing::Answer;
using testing::CheckpointFixture;
using testing::counting;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run;
using testing::tied_config;
using testing::tiny_llama_tensors;
using testing::untied_config;

std::vector<FixtureTensor> with_another_norm() {
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  for (FixtureTensor& tensor : tensors) {
    if (tensor.name == "model.norm.weight") {
      tensor = counting(tensor.name, tensor.shape, 100);
    }
  }
  return tensors;
}

std::vector<FixtureTensor> with_a_head() {
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  for (const FixtureTensor& tensor : tiny_llama_tensors()) {
    if (tensor.name == "model.embed_tokens.weight") {
      tensors.push_back(counting("lm_head.weight", tensor.shape, 7));
    }
  }
  return tensors;
}

TEST(DiffVerb, SaysTheSameWithStatus0) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const Answer answer = run({"diff", model.path(), model.path()});
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.out, HasSubstr("same: 11 of 11 tensors equal"));
}

TEST(DiffVerb, ShowsWhatDiffersWithStatus1) {
  CheckpointFixture first(tied_config());
  CheckpointFixture second(tied_config());
  first.write(tiny_llama_tensors());
  second.write(with_another_norm());
  const Answer answer = run({"diff", first.path(), second.path()});
  EXPECT_EQ(answer.status, 1);
  EXPECT_THAT(answer.out, HasSubstr("model.norm.weight  F32 [4]"));
  EXPECT_THAT(answer.out, HasSubstr("4 values differ, first at 0, by "));
  EXPECT_THAT(answer.out, HasSubstr("different: 10 of 11 tensors equal"));
  EXPECT_EQ(run({"diff", first.path(), second.path(), "--no-values"}).status, 0);
  const auto document = run({"diff", first.path(), second.path(), "--json"}).json();
  EXPECT_EQ(document["same"], false);
  EXPECT_EQ(document["differences"][0]["name"], "model.norm.weight");
  EXPECT_EQ(document["differences"][0]["values_differ"], 4);
  EXPECT_EQ(document["differences"][0]["first_index"], 0);
}

TEST(DiffVerb, ComparesWhatTheConfigsSay) {
  CheckpointFixture first(tied_config());
  CheckpointFixture second(untied_config());
  first.write(with_a_head());
  second.write(with_a_head());
  const Answer answer = run({"diff", first.path(), second.path()});
  EXPECT_EQ(answer.status, 1);
  EXPECT_THAT(answer.out, HasSubstr("config.json: tie_word_embeddings"));
  EXPECT_EQ(run({"check", first.path(), "--same-as", second.path()}).status, 1);
}

TEST(DiffVerb, SaysThatValuesWereNotCompared) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const Answer answer = run({"diff", model.path(), model.path(), "--no-values"});
  EXPECT_THAT(answer.out, HasSubstr("values not compared"));
  EXPECT_THAT(answer.out, Not(HasSubstr("of values compared")));
}

TEST(CheckVerb, KnowsNoTiesOfOneFileByItself) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const std::filesystem::path folder(model.path());
  std::filesystem::copy_file(folder / "model.safetensors", folder / "part.safetensors");
  const Answer answer = run({"check", (folder / "part.safetensors").string(), "--expect", "untied"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("ties cannot be known from a weights file by itself"));
}

TEST(CheckVerb, GivesStatus4ForWhatCannotBeRead) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const std::filesystem::path weights = std::filesystem::path(model.path()) / "model.safetensors";
  std::filesystem::remove(weights);
  ASSERT_EQ(::mkfifo(weights.c_str(), 0600), 0);
  for (const char* verb : {"doctor", "ties", "inspect"}) {
    EXPECT_EQ(run({verb, model.path()}).status, 4) << verb;
  }
  EXPECT_EQ(run({"check", model.path(), "--expect", "tied"}).status, 4);
}

TEST(DiffVerb, SaysWhatCannotBeOpened) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const Answer answer = run({"diff", model.path(), "/no/such"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("[directory-not-found]"));
}

TEST(CheckVerb, AnswersWhetherNamesShareAWeight) {
  CheckpointFixture tied(tied_config());
  CheckpointFixture untied(untied_config());
  CheckpointFixture conflict(tied_config());
  tied.write(tiny_llama_tensors());
  untied.write(with_a_head());
  conflict.write(with_a_head());
  const Answer yes = run({"check", tied.path(), "--expect", "tied"});
  EXPECT_EQ(yes.status, 0);
  EXPECT_EQ(yes.out, "ok: " + tied.path().string() + ": tied (lm_head.weight = model.embed_tokens.weight)\n");
  const Answer no = run({"check", tied.path(), "--expect", "untied"});
  EXPECT_EQ(no.status, 1);
  EXPECT_THAT(no.out, HasSubstr("no: "));
  EXPECT_THAT(no.out, HasSubstr("(expected untied)"));
  EXPECT_EQ(run({"check", untied.path(), "--expect", "untied"}).status, 0);
  EXPECT_EQ(run({"check", untied.path(), "--expect", "tied"}).status, 1);
  const Answer torn = run({"check", conflict.path(), "--expect", "tied"});
  EXPECT_EQ(torn.status, 1);
  EXPECT_THAT(torn.out, HasSubstr("untied (tie-conflict: ")) << "the first differing element is in the line";
}

TEST(CheckVerb, ComparesWithAnotherInOneLine) {
  CheckpointFixture first(tied_config());
  CheckpointFixture second(tied_config());
  first.write(tiny_llama_tensors());
  second.write(with_another_norm());
  EXPECT_EQ(run({"check", first.path(), "--same-as", first.path()}).status, 0);
  const Answer no = run({"check", first.path(), "--expect", "tied", "--same-as", second.path()});
  EXPECT_EQ(no.status, 1);
  EXPECT_THAT(no.out, HasSubstr("; 1 difference from "));
  EXPECT_THAT(no.out, HasSubstr("model.norm.weight F32 [4], 4 values differ"));
  EXPECT_THAT(no.out, Not(HasSubstr("(expected")));
  EXPECT_EQ(std::count(no.out.begin(), no.out.end(), '\n'), 1);
  EXPECT_EQ(run({"check", first.path(), "--expect", "tied", "--json"}).json()["ok"], true);
}

TEST(CheckVerb, HasToBeAskedSomething) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  EXPECT_THAT(run({"check", model.path()}).err, HasSubstr("[bad-flag]"));
  EXPECT_EQ(run({"check", model.path(), "--expect", "perhaps"}).status, 2);
  EXPECT_EQ(run({"check", model.path(), "--same-as", ""}).status, 2);
}

} // namespace
} // namespace tieshard::cli

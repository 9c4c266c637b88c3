#include "tieshard/cli/ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using testing::Answer;
using testing::CheckpointFixture;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run;
using testing::tied_config;
using testing::tiny_llama_tensors;
using testing::untied_config;

TEST(TiesVerb, ShowsTheGroupWithItsEvidence) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const Answer answer = run({"ties", model.path()});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("model.embed_tokens.weight  [6, 4]  F32  96 B  model.safetensors @ "));
  EXPECT_THAT(answer.out, HasSubstr("\n  = lm_head.weight  not stored\n    because  config.json: "));
  EXPECT_THAT(answer.out, HasSubstr("1 tie group, 96 B counted once\n"));
  EXPECT_THAT(answer.err, IsEmpty());
}

TEST(TiesVerb, GivesMachinesTheSame) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const auto document = run({"ties", model.path(), "--json"}).json();
  ASSERT_EQ(document["groups"].size(), 1U);
  EXPECT_EQ(document["groups"][0]["canonical"], "model.embed_tokens.weight");
  const auto& alias = document["groups"][0]["aliases"][0];
  EXPECT_EQ(alias["name"], "lm_head.weight");
  EXPECT_EQ(alias["stored"], false);
  EXPECT_EQ(alias["evidence"][0]["kind"], "config-flag");
  EXPECT_THAT(alias["evidence"][0]["text"].get<std::string>(), HasSubstr("tie_word_embeddings"));
  EXPECT_TRUE(document["findings"].empty());
}

TEST(TiesVerb, SaysWhyThereAreNone) {
  CheckpointFixture model(untied_config());
  model.write(tiny_llama_tensors(true));
  const Answer answer = run({"ties", model.path()});
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.out,
              HasSubstr("no ties: each of the 12 parameters has a storage of its own\n"
                        "  because  config.json: tie_word_embeddings = false\n"));
}

TEST(TiesVerb, PutsAConflictOnStderrAndIntoTheDocument) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors(true));
  const Answer text = run({"ties", model.path()});
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, HasSubstr("stored with different values: see the warning"));
  EXPECT_THAT(text.err, HasSubstr("warning  names declared tied are stored with different values [tie-conflict]"));
  const Answer json = run({"ties", model.path(), "--json"});
  EXPECT_THAT(json.err, IsEmpty());
  EXPECT_EQ(json.json()["findings"][0]["code"], "tie-conflict");
  EXPECT_EQ(json.json()["findings"][0]["level"], "warning");
}

TEST(TiesVerb, TakesADeclaredTie) {
  CheckpointFixture model(untied_config());
  model.write(tiny_llama_tensors());
  const Answer answer = run({"ties", model.path(), "--tie", "lm_head.weight=model.embed_tokens.weight", "--json"});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_EQ(answer.json()["groups"][0]["aliases"][0]["evidence"][0]["kind"], "explicit-map");
}

TEST(TiesVerb, RefusesADeclaredTieOfAnotherForm) {
  CheckpointFixture model(untied_config());
  model.write(tiny_llama_tensors());
  for (const char* value : {"lm_head.weight", "=a", "a=", "nobody=model.embed_tokens.weight"}) {
    EXPECT_EQ(run({"ties", model.path(), "--tie", value}).status, 2) << value;
  }
}

TEST(TiesVerb, TakesAnArchitectureThatItDoesNotKnowByItsNamesWithAWarning) {
  CheckpointFixture model(R"({"model_type": "nobody_knows"})");
  model.write({testing::counting("a", {2})});
  const Answer answer = run({"ties", model.path()});
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.out, HasSubstr("config.json has no tie flag, and the family is not known"));
  EXPECT_THAT(answer.err, HasSubstr("[unknown-architecture]"));
  EXPECT_THAT(answer.err, HasSubstr("nobody_knows"));
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/cli/doctor.h"

#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using ::testing::AllOf;
using testing::Answer;
using testing::bytes_of;
using testing::CheckpointFixture;
using testing::counting;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run;
using testing::tied_config;
using testing::tiny_llama_tensors;
using testing::untied_config;

Answer doctor(const CheckpointFixture& model, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"doctor", model.path(), "--ranks", "2"});
  return run(flags);
}

std::vector<std::string> codes(const Answer& answer) {
  const auto document = answer.json();
  std::vector<std::string> codes;
  for (const auto& finding : document["findings"]) {
    codes.push_back(finding["code"]);
  }
  return codes;
}

TEST(DoctorVerb, SaysThatASoundCheckpointLoads) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const Answer answer = doctor(model);
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.err, IsEmpty());
  EXPECT_THAT(answer.out, HasSubstr("LlamaForCausalLM: 196 parameters; 11 tensors stored in 1 file, 784 B\n"));
  EXPECT_THAT(answer.out, HasSubstr("tied  lm_head.weight = model.embed_tokens.weight  (config.json: "));
  EXPECT_THAT(answer.out, HasSubstr("\n  0-1          98   392 B  392 B\n"));
  EXPECT_THAT(answer.out, HasSubstr("\nok: loads on 2 ranks\n"));
}

TEST(DoctorVerb, ListsFindingsFromTheWorstOnAndRefuses) {
  CheckpointFixture model(untied_config());
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.back().bytes = bytes_of<float>({1, std::numeric_limits<float>::quiet_NaN(), 2, 3});
  model.write(tensors);
  const Answer answer = doctor(model);
  EXPECT_EQ(answer.status, 2);
  const std::size_t error = answer.out.find("error  a parameter has no value in the checkpoint [missing-parameter]");
  const std::size_t warning = answer.out.find("warning  a stored value is NaN or infinite [not-finite]");
  ASSERT_NE(error, std::string::npos) << answer.out;
  ASSERT_NE(warning, std::string::npos) << answer.out;
  EXPECT_LT(error, warning);
  EXPECT_THAT(answer.out, ::testing::EndsWith("\nrefuse: does not load, 1 error\n"));
}

TEST(DoctorVerb, WarnsWithStatusZero) {
  CheckpointFixture model(tied_config());
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.push_back(counting("stray", {1}));
  model.write(tensors);
  const Answer answer = doctor(model);
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.out, ::testing::EndsWith("\nwarn: loads on 2 ranks, with 1 warning\n"));
}

TEST(DoctorVerb, GivesJsonForEveryOutcome) {
  CheckpointFixture model(tied_config());
  const Answer none = doctor(model, {"--json"});
  EXPECT_EQ(none.status, 2);
  EXPECT_EQ(none.json()["verdict"], "refuse");
  EXPECT_EQ(none.json()["findings"][0]["code"], "no-weights");
  for (const char* part : {"level", "what", "where", "why", "fix"}) {
    EXPECT_FALSE(none.json()["findings"][0][part].get<std::string>().empty()) << part;
  }
  model.write(tiny_llama_tensors());
  const auto document = doctor(model, {"--json"}).json();
  EXPECT_EQ(document["verdict"], "ok");
  EXPECT_EQ(document["ranks"], 2);
  EXPECT_EQ(document["files"], 1);
  EXPECT_EQ(document["family"], "llama");
  EXPECT_EQ(document["parameters"], 196);
  EXPECT_EQ(document["ties"][0]["aliases"][0]["name"], "lm_head.weight");
  EXPECT_EQ(document["per_rank"][0]["last"], 1);
}

TEST(DoctorVerb, HearsTheFlagsOfALoad) {
  CheckpointFixture model(untied_config());
  model.write(tiny_llama_tensors());
  EXPECT_EQ(doctor(model, {"--tie", "lm_head.weight=model.embed_tokens.weight"}).status, 0);
  EXPECT_THAT(
      codes(doctor(model,
                   {"--json", "--host-ram-per-rank", "1KiB", "--tie", "lm_head.weight=model.embed_tokens.weight"})),
      ::testing::Contains("host-memory"));
  EXPECT_THAT(codes(doctor(model, {"--json", "--max-header-bytes", "100"})),
              ::testing::ElementsAre("header-too-large"));
  EXPECT_THAT(codes(doctor(model, {"--json", "--dim", "model.norm.weight=1"})), ::testing::Contains("bad-shard-dim"));
}

TEST(DoctorVerb, LeavesValuesAloneWhereAsked) {
  CheckpointFixture model(tied_config());
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  tensors.back().bytes = bytes_of<float>({1, std::numeric_limits<float>::quiet_NaN(), 2, 3});
  model.write(tensors);
  EXPECT_THAT(codes(doctor(model, {"--json"})), ::testing::ElementsAre("not-finite"));
  EXPECT_THAT(codes(doctor(model, {"--json", "--no-check-values"})), IsEmpty());
}

TEST(DoctorVerb, RefusesFlagsThatCannotBeUsed) {
  CheckpointFixture model(tied_config());
  model.write(tiny_llama_tensors());
  const std::vector<std::vector<std::string>> bad = {{"--read-buffer", "much"},
                                                     {"--host-ram-per-rank", "1.5"},
                                                     {"--param-dtype", "int8"},
                                                     {"--on-tie-conflict", "guess"},
                                                     {"--init", "normal(0.02)"},
                                                     {"--init", "lm_head.weight="},
                                                     {"--shard-dim", "middle"},
                                                     {"--threads", "0"}};
  for (const std::vector<std::string>& flags : bad) {
    const Answer answer = doctor(model, flags);
    EXPECT_EQ(answer.status, 2) << flags[0];
    EXPECT_THAT(answer.err, AllOf(HasSubstr("[bad-flag]"), HasSubstr(flags[0]))) << flags[0];
    EXPECT_THAT(answer.out, IsEmpty()) << flags[0];
  }
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/cli/ladder.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"

#include "tests/core/base/temp_dir.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard::cli {
namespace {

using ::testing::HasSubstr;
using testing::raised;

/// A checkpoint, and a program in place of tieshard-runtime that answers each rung with a file that the test wrote:
/// STAGE-RANKS holds logits, STAGE-RANKS.sh is run instead.
class LadderTest : public ::testing::Test {
 protected:
  LadderTest() : model_(testing::tied_config()) {
    model_.write(testing::tiny_llama_tensors());
    program_ = dir_.write("runtime",
                          "#!/bin/sh\n"
                          "cd \"$(dirname \"$0\")\"\n"
                          "echo \"$@\" >> called\n"
                          "cp \"$4\" tokens\n"
                          "answer=$8-${10}\n"
                          "if [ -e \"$answer.sh\" ]; then . \"./$answer.sh\"; fi\n"
                          "cp \"$answer\" \"$6\"\n");
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
    for (const char* rung : {"eager-1", "load-1", "shard-1", "shard-2"}) {
      answer(rung, {1.0F, -4.0F, 2.0F});
    }
  }

  void answer(const std::string& rung, const std::vector<float>& logits) {
    const auto count = static_cast<std::int64_t>(logits.size());
    std::filesystem::remove(dir_ / rung);
    write_safetensors(dir_ / rung,
                      layout_safetensors({{.name = "logits", .dtype = DType::kF32, .shape = {1, 1, count}}}, {}),
                      [&](const TensorEntry&) { return std::as_bytes(std::span(logits)); });
  }

  Ladder climb_to(std::int64_t ranks) {
    return climb({.directory = model_.path(), .ranks = ranks, .runtime = program_});
  }

  TempDir dir_;
  testing::CheckpointFixture model_;
  std::filesystem::path program_;
};

TEST_F(LadderTest, GoesUpToTheRanksThatAreAskedFor) {
  const Ladder ladder = climb_to(2);
  ASSERT_EQ(ladder.rungs.size(), 4U);
  EXPECT_TRUE(ladder.passed());
  EXPECT_EQ(ladder.rungs[3].ranks, 2);
  EXPECT_EQ(ladder.rungs[3].difference, 0);
  EXPECT_EQ(ladder.rungs[3].largest, 4);
  EXPECT_EQ(climb_to(1).rungs.size(), 3U);
  const SafetensorsFile tokens = SafetensorsFile::open(dir_ / "tokens");
  ASSERT_NE(tokens.find("input_ids"), nullptr);
  EXPECT_EQ(tokens.find("decoder_input_ids"), nullptr);
}

TEST_F(LadderTest, StopsAtTheFirstRungThatFailsAndSaysWhatThatRungAdds) {
  dir_.write("load-1.sh",
             "echo 'warn  a thing'; echo 'error  a tensor has no bytes yet [still-on-meta]' >&2; exit 3\n");
  const Ladder ladder = climb_to(2);
  ASSERT_EQ(ladder.rungs.size(), 2U);
  ASSERT_EQ(ladder.findings.size(), 1U);
  const Diagnostic& finding = ladder.findings.front();
  EXPECT_EQ(finding.code, Code::kRungFailed);
  EXPECT_EQ(finding.level, Level::kError);
  EXPECT_EQ(finding.where, "rung 2, meta and load on 1 rank");
  EXPECT_THAT(finding.why, HasSubstr("ended with 3: error  a tensor has no bytes yet [still-on-meta]"));
  EXPECT_THAT(finding.fix, HasSubstr("how a meta parameter gets them"));
  EXPECT_THAT(ladder.rungs[1].said, HasSubstr("warn  a thing\n"));
}

TEST_F(LadderTest, ACrashIsARungsFailure) {
  dir_.write("shard-2.sh", "kill -SEGV $$\n");
  const Ladder ladder = climb_to(2);
  ASSERT_EQ(ladder.findings.size(), 1U);
  EXPECT_EQ(ladder.findings.front().where, "rung 4, sharded on 2 ranks");
  EXPECT_THAT(ladder.findings.front().why, HasSubstr("was ended by signal 11: it printed nothing"));
}

TEST_F(LadderTest, OtherNumbersAreAFailureAndRoundingIsNone) {
  answer("load-1", {1.00003F, -4.0F, 2.0F});
  EXPECT_TRUE(climb_to(2).passed());
  answer("shard-1", {1.00005F, -4.0F, 2.0F});
  const Ladder ladder = climb_to(2);
  ASSERT_EQ(ladder.findings.size(), 1U);
  EXPECT_EQ(ladder.findings.front().where, "rung 3, sharded on 1 rank");
  EXPECT_THAT(ladder.findings.front().why, HasSubstr("to 4e-05, got a difference of 4.99e-05"));
}

TEST_F(LadderTest, LogitsThatAreNoNumbersFailTheFirstRungThatHasThem) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  answer("shard-1", {1.0F, nan, 2.0F});
  EXPECT_EQ(climb_to(1).findings.at(0).where, "rung 3, sharded on 1 rank");
  answer("eager-1", {1.0F, nan, 2.0F});
  EXPECT_THAT(climb_to(1).findings.at(0).why, HasSubstr("expected finite logits"));
  answer("eager-1", {1.0F, 2.0F});
  EXPECT_EQ(climb_to(1).findings.at(0).where, "rung 2, meta and load on 1 rank");
}

TEST_F(LadderTest, HandsTheFlagsOn) {
  climb({.directory = model_.path(),
         .ranks = 2,
         .open = {.untied = {"lm_head.weight"}, .no_rename = true},
         .shard = {.shard_dim = "first", .dims = {"model.norm.weight=0"}},
         .load = {.read_buffer = "1MiB"},
         .runtime = program_});
  const std::string called = dir_.read("called");
  EXPECT_THAT(called,
              HasSubstr("--stage eager --ranks 1 --untie lm_head.weight --on-tie-conflict untie --read-buffer 1MiB"));
  EXPECT_THAT(called, HasSubstr("--no-rename --no-check-values --shard-dim first --dim model.norm.weight=0\n"));
}

TEST_F(LadderTest, LeavesNothingBehind) {
  const auto count = [] {
    std::int64_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::temp_directory_path())) {
      found += entry.path().filename().string().starts_with("tieshard-try-") ? 1 : 0;
    }
    return found;
  };
  const std::int64_t before = count();
  dir_.write("load-1.sh", "exit 1\n");
  climb_to(2);
  EXPECT_EQ(count(), before);
}

} // namespace
} // namespace tieshard::cli

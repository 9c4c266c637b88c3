#include "tieshard/core/report/run_report.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSteps =
    "{\"step\":1,\"loss\":4.5,\"grad_norm\":2.0,\"lr\":0.001,\"tokens\":64,\"seconds\":0.5,\"skipped\":false}\n"
    "{\"step\":2,\"loss\":4.0,\"grad_norm\":null,\"lr\":0.001,\"tokens\":64,\"seconds\":0.5,\"skipped\":true,\"eval_"
    "loss\":4.25}\n";

TEST(RunFiles, ReadsStepsAndWhatHappened) {
  const TempDir dir;
  dir.write("metrics.jsonl", kSteps);
  dir.write("summary.json",
            "{\"ranks\":[{\"rank\":0,\"rss_after_load_mib\":1.5,\"rss_peak_mib\":3}],\"first_step\":1,\"saves\":[{"
            "\"step\":2,\"seconds\":0.5,"
            "\"blocked_s\":0.1,\"bytes\":1048576}],\"stopped_by\":15}");
  dir.write("config.json", "{\"steps\": 2, \"model\": \"m<\"}");
  std::filesystem::create_directories(dir / "checkpoints" / "step-000000002");
  const RunFiles run = read_run(dir.path());
  ASSERT_EQ(run.steps.size(), 2U);
  EXPECT_EQ(run.steps[1].eval_loss, 4.25);
  EXPECT_TRUE(std::isnan(run.steps[1].grad_norm));
  EXPECT_TRUE(run.finished);
  EXPECT_EQ(run.ranks.at(0).peak, 3U << 20);
  std::string events;
  for (const RunEvent& event : run.events) {
    events += concat(event.step, " ", event.what, "\n");
  }
  for (const char* part : {"1 the last job went on",
                           "2 saved 1.0 MiB",
                           "2 ended by signal 15",
                           "2 checkpoint step-000000002",
                           "2 skipped",
                           "2 evaluated: loss 4.25"}) {
    EXPECT_THAT(events, HasSubstr(part));
  }
  EXPECT_EQ(run.flags.at(1).second, "m<");
}

TEST(RunFiles, ATornLineIsCountedAndTheRestIsRead) {
  const TempDir dir;
  dir.write("metrics.jsonl", concat(kSteps, "{\"step\":3,\"lo"));
  dir.write("summary.json", "{\"ranks\": [");
  const RunFiles run = read_run(dir.path());
  EXPECT_EQ(run.steps.size(), 2U);
  EXPECT_EQ(run.bad_lines, 1U);
  EXPECT_FALSE(run.finished);
  const std::string page = run_report(run, "run");
  EXPECT_THAT(page, HasSubstr("1 line of metrics.jsonl is no step"));
  EXPECT_THAT(page, HasSubstr("no end yet"));
}

TEST(RunFiles, ADirectoryThatIsNoRunIsRefused) {
  const TempDir dir;
  expect_refusal<InputError>(Code::kFileNotFound, {"metrics.jsonl"}, [&] { read_run(dir.path()); });
  expect_refusal<InputError>(Code::kDirectoryNotFound, {"none"}, [&] { read_run(dir / "none"); });
}

TEST(RunFiles, ARunOfNoStepHasASummaryAlone) {
  const TempDir dir;
  dir.write("summary.json", "{\"ranks\": [], \"saves\": [], \"stopped_by\": null}");
  const RunFiles run = read_run(dir.path());
  EXPECT_TRUE(run.finished);
  EXPECT_TRUE(run.steps.empty());
  EXPECT_THAT(run_report(run, "run"), HasSubstr("No step has ended yet"));
}

TEST(RunReport, IsWrittenIntoTheRun) {
  const TempDir dir;
  dir.write("metrics.jsonl", kSteps);
  write_run_report(dir.path());
  const std::string page = dir.read("report.html");
  EXPECT_THAT(page, HasSubstr("<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("Loss: 4.5 at step 1, 4 at step 2"));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
}

TEST(RunReport, OfARunWithoutAStepSaysSo) {
  const TempDir dir;
  dir.write("metrics.jsonl", "");
  EXPECT_THAT(run_report(read_run(dir.path()), "run"), HasSubstr("No step has ended yet"));
}

} // namespace
} // namespace tieshard

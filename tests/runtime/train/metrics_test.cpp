#include "tieshard/runtime/train/metrics.h"

#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"

#include "tests/support/diagnostics.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

using nlohmann::ordered_json;

TEST(MetricsFile, HasALineAStepThatIsThereAtOnce) {
  const auto path = fresh_directory("out") / "metrics.jsonl";
  MetricsFile file(path, 0);
  file.write({.step = 1, .loss = 2.5, .grad_norm = 0.25, .lr = 1e-4, .tokens = 512, .seconds = 0.125});
  EXPECT_EQ(read_text_file(path),
            "{\"step\":1,\"loss\":2.5,\"grad_norm\":0.25,\"lr\":0.0001,\"tokens\":512,\"seconds\":0.125,"
            "\"skipped\":false}\n");
  file.write({.step = 2});
  const std::string text = read_text_file(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(MetricsFile, KeepsALossToItsLastBit) {
  const auto path = fresh_directory("out") / "metrics.jsonl";
  const double loss = 1.0 / 3.0;
  MetricsFile(path, 0).write({.step = 1, .loss = loss});
  EXPECT_EQ(ordered_json::parse(read_text_file(path)).at("loss").get<double>(), loss);
}

TEST(MetricsFile, SaysThatAStepWasSkippedAndHasNoNumberForItsNorm) {
  const auto path = fresh_directory("out") / "metrics.jsonl";
  MetricsFile(path, 0).write({.step = 1, .grad_norm = std::numeric_limits<double>::quiet_NaN(), .skipped = true});
  const ordered_json line = ordered_json::parse(read_text_file(path));
  EXPECT_TRUE(line.at("grad_norm").is_null());
  EXPECT_EQ(line.at("skipped"), true);
}

TEST(MetricsFile, HasAnEvaluationInTheLineOfItsStep) {
  const auto path = fresh_directory("out") / "metrics.jsonl";
  MetricsFile(path, 0).write({.step = 1, .evaluation = Evaluation{.loss = 0.0, .targets = 30, .seconds = 0.5}});
  const ordered_json line = ordered_json::parse(read_text_file(path));
  EXPECT_EQ(line.at("eval_loss"), 0.0);
  EXPECT_EQ(line.at("eval_perplexity"), 1.0);
  EXPECT_EQ(line.at("eval_targets"), 30);
  EXPECT_EQ(line.at("eval_seconds"), 0.5);
}

TEST(Scalars, AreTheNumbersOfAStepByTheirTags) {
  const auto scalars = scalars_of({.step = 1, .loss = 2, .grad_norm = 3, .lr = 0.5, .tokens = 10, .seconds = 2});
  ASSERT_EQ(scalars.size(), 4U);
  EXPECT_EQ(scalars[0].tag, "train/loss");
  EXPECT_EQ(scalars[0].value, 2.0F);
  EXPECT_EQ(scalars[3].tag, "train/tokens_per_second");
  EXPECT_EQ(scalars[3].value, 5.0F);
  const auto evaluated = scalars_of({.step = 1, .evaluation = Evaluation{.loss = 1.5}});
  EXPECT_EQ(evaluated.back().tag, "eval/loss");
  EXPECT_EQ(evaluated.back().value, 1.5F);
}

TEST(MetricsFile, ThatCannotBeMadeIsRefused) {
  const auto path = fresh_directory("out") / "none" / "metrics.jsonl";
  expect_refusal([&] { MetricsFile file(path, 0); }, Code::kIoFailed, {"metrics.jsonl"});
}

TEST(RunSummaryJson, HasTheFieldsThatProgramsRead) {
  RunSummary summary;
  summary.load_seconds = 1.5;
  summary.ranks.push_back({.before_load = 1 << 20, .after_load = 3 << 20, .end = 1536 * 1024});
  summary.ranks.push_back({});
  summary.steps.push_back({.step = 1, .loss = 4.0, .seconds = 0.5});
  summary.steps.push_back({.step = 2, .loss = 3.0, .seconds = 0.25, .skipped = true});
  const ordered_json json = ordered_json::parse(to_json(summary));
  EXPECT_EQ(json.at("load_s"), 1.5);
  EXPECT_EQ(json.at("step_s"), ordered_json({0.5, 0.25}));
  EXPECT_EQ(json.at("losses"), ordered_json({4.0, 3.0}));
  EXPECT_EQ(json.at("skipped_steps"), 1);
  ASSERT_EQ(json.at("ranks").size(), 2U);
  EXPECT_EQ(json.at("ranks")[0].at("rank"), 0);
  EXPECT_EQ(json.at("ranks")[1].at("rank"), 1);
  EXPECT_EQ(json.at("ranks")[0].at("rss_before_load_mib"), 1.0);
  EXPECT_EQ(json.at("ranks")[0].at("rss_after_load_mib"), 3.0);
  EXPECT_EQ(json.at("ranks")[0].at("rss_peak_mib"), 1.5);
}

} // namespace
} // namespace tieshard::testing

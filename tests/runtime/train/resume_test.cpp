#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>

#include "tieshard/core/base/file.h"
#include "tieshard/core/state/find_checkpoint.h"
#include "tieshard/runtime/train/run_directory.h"
#include "tieshard/runtime/train/stop_signal.h"
#include "tieshard/runtime/train/trainer.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal_on_ranks.h"
#include "tests/support/saved_tensors.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 6;

/// Tokens below the vocabulary of write_tiny_llama; ten samples, so that six steps of two ranks go beyond an epoch.
fs::path write_tokens() {
  const fs::path path = fresh_directory("data") / "tokens.bin";
  std::vector<std::uint16_t> tokens(84);
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::uint16_t>(index * index % 37);
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 2));
  return path;
}

class Resume : public ::testing::Test {
 protected:
  Resume() {
    config.model = write_tiny_llama("model", {});
    config.data = write_tokens();
    config.out = out / "run";
    config.steps = kSteps;
    config.sequence = 8;
    config.batch = 2;
    config.lr = 5e-3;
    config.schedule = {.kind = lr_schedule_from_name("cosine"), .warmup = 2};
    config.save.every_steps = 2;
    config.save.keep = 0;
    config.resume = ""; // as a script that is started again and again has it
  }

  /// A run in `folder` that is told to stop in step `step`.
  TrainConfig in(const std::string& folder) const {
    TrainConfig other = config;
    other.out = out / folder;
    return other;
  }

  fs::path out = fresh_directory("out");
  TrainConfig config;
};

std::vector<double> losses(const RunSummary& summary) {
  std::vector<double> all;
  for (const StepMetrics& step : summary.steps) {
    all.push_back(step.loss);
  }
  return all;
}

/// Trains until `step`, in which one rank gets `signal`.
RunSummary train_until(const TrainConfig& config, const DeviceMesh& mesh, std::int64_t step, int signal = SIGTERM) {
  return train(config, mesh, {.on_step = [&](const StepMetrics& metrics) {
                 if (metrics.step == step - 1) { // on rank 0 alone, as a scheduler may do it
                   ::raise(signal);
                 }
               }});
}

void expect_same_end(const fs::path& one, const fs::path& other) {
  const std::string last = CheckpointStore::name_of(kSteps);
  EXPECT_EQ(saved_tensors(checkpoints_of(one) / last), saved_tensors(checkpoints_of(other) / last));
  EXPECT_EQ(read_text_file(one / "export" / "model.safetensors"),
            read_text_file(other / "export" / "model.safetensors"));
}

/// Step and loss of each line.
std::vector<std::pair<int, double>> metric_lines(const fs::path& run) {
  std::vector<std::pair<int, double>> lines;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto parsed = nlohmann::json::parse(line);
    lines.emplace_back(parsed.at("step").get<int>(), parsed.at("loss").get<double>());
  }
  return lines;
}

TEST_F(Resume, AfterASignalGivesTheSameBitsAsARunThatWasNotInterrupted) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    for (const std::optional<BusySave> background : {std::optional<BusySave>(), std::optional(BusySave::kSkip)}) {
      const std::string name = concat(signal, background ? "later" : "now");
      config.save.background = background;
      const TrainConfig whole = in(concat("whole", name));
      const TrainConfig parts = in(concat("parts", name));
      on_ranks(2, [&](const DeviceMesh& mesh) {
        const RunSummary expected = train(whole, mesh);
        const RunSummary before = train_until(parts, mesh, 3, signal);
        EXPECT_EQ(before.stopped_by, signal);
        EXPECT_EQ(before.steps.size(), 3U);
        EXPECT_FALSE(fs::exists(parts.out / "export"));
        const RunSummary after = train(parts, mesh);
        EXPECT_EQ(after.first_step, 3);
        std::vector<double> all = losses(before);
        for (const double loss : losses(after)) {
          all.push_back(loss);
        }
        EXPECT_EQ(all, losses(expected));
      });
      expect_same_end(whole.out, parts.out);
      EXPECT_EQ(metric_lines(parts.out), metric_lines(whole.out));
    }
  }
}

TEST_F(Resume, TakesTheLinesOfLostStepsOutOfTheMetrics) {
  const TrainConfig whole = in("whole");
  on_ranks(2, [&](const DeviceMesh& mesh) { train(whole, mesh); });
  const auto expected = metric_lines(whole.out);
  fs::remove_all(checkpoints_of(whole.out) / CheckpointStore::name_of(6)); // as if the job had been killed in step 6
  std::ofstream(whole.out / "metrics.jsonl", std::ios::app) << "{\"step\": 7, \"lo"; // in the middle of a line
  on_ranks(2, [&](const DeviceMesh& mesh) { EXPECT_EQ(train(whole, mesh).first_step, 4); });
  EXPECT_EQ(metric_lines(whole.out), expected);
}

TEST_F(Resume, OnOtherNumbersOfRanksTakesTheSameSamples) {
  const TrainConfig whole = in("whole");
  on_ranks(2, [&](const DeviceMesh& mesh) { train(whole, mesh); });
  const auto expected = metric_lines(whole.out);
  for (const int ranks : {1, 4}) {
    TrainConfig other = in(concat("on", ranks));
    other.batch = 4 / ranks; // the same global batch
    other.resume = checkpoints_of(whole.out) / CheckpointStore::name_of(2);
    on_ranks(ranks, [&](const DeviceMesh& mesh) {
      const RunSummary summary = train(other, mesh);
      ASSERT_EQ(summary.steps.size(), 4U);
      for (std::size_t step = 0; step < 4; ++step) {
        EXPECT_NEAR(summary.steps[step].loss, expected[step + 2].second, 1e-5) << ranks << " ranks, step " << step;
      }
    });
  }
}

TEST_F(Resume, OnAnotherDimensionHoldsTheSameState) {
  TrainConfig whole = in("whole");
  whole.steps = 2;
  TrainConfig other = in("other");
  other.resume = whole.out;
  other.shard_dim = ShardDimPolicy::kFirst;
  on_ranks(3, [&](const DeviceMesh& mesh) {
    train(whole, mesh);
    train(other, mesh);
  });
  EXPECT_EQ(metric_lines(other.out).front().first, 3);
}

TEST_F(Resume, OfAnAdapterWithDropoutGivesTheSameBits) {
  AdapterOptions adapter;
  adapter.config.rank = 2;
  adapter.config.dropout = 0.3;
  adapter.config.targets.names = {"q_proj", "v_proj"};
  config.adapter = adapter;
  const TrainConfig whole = in("whole");
  const TrainConfig parts = in("parts");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const std::vector<double> expected = losses(train(whole, mesh));
    train_until(parts, mesh, 3);
    const std::vector<double> found = losses(train(parts, mesh));
    EXPECT_EQ(found, std::vector<double>(expected.begin() + 3, expected.end()));
  });
  const std::string last = CheckpointStore::name_of(kSteps);
  const auto tensors = saved_tensors(checkpoints_of(whole.out) / last);
  EXPECT_EQ(saved_tensors(checkpoints_of(parts.out) / last), tensors);
  EXPECT_FALSE(tensors.contains("model.embed_tokens.weight")); // the base is in another directory
  const Manifest manifest = open_manifest(checkpoints_of(whole.out) / last, Verify::kHashes);
  EXPECT_FALSE(manifest.find("model.embed_tokens.weight")->stored);
}

TEST_F(Resume, GoesOnFromTheNewestCompleteCheckpointAndSaysSo) {
  on_ranks(2, [&](const DeviceMesh& mesh) { train(config, mesh); });
  const auto expected = metric_lines(config.out);
  const fs::path newest = checkpoints_of(config.out) / CheckpointStore::name_of(6);
  fs::resize_file(newest / "trainer.json", 10);
  std::vector<Diagnostic> findings;
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const RunSummary summary =
        train(config, mesh, {.on_resume = [&](const LoadedCheckpoint& loaded) { findings = loaded.findings; }});
    EXPECT_EQ(summary.first_step, 4);
    if (mesh.rank() == 0) {
      ASSERT_EQ(findings.size(), 1U);
      EXPECT_EQ(findings.front().code, Code::kCheckpointIncomplete);
      EXPECT_EQ(findings.front().level, Level::kWarning);
      EXPECT_THAT(findings.front().to_string(), ::testing::HasSubstr("trainer.json"));
    }
  });
  EXPECT_EQ(metric_lines(config.out), expected);
  EXPECT_NO_THROW(open_manifest(newest, Verify::kHashes)); // the damaged one was replaced
}

TEST_F(Resume, SaysWhichFlagsAreOthersThanBefore) {
  TrainConfig changed = config;
  changed.lr = 1e-3;
  changed.steps = 8;
  on_ranks(1, [&](const DeviceMesh& mesh) {
    train(config, mesh);
    std::string text;
    train(changed, mesh, {.on_resume = [&](const LoadedCheckpoint& loaded) {
            for (const Diagnostic& finding : loaded.findings) {
              text += finding.to_string();
            }
          }});
    EXPECT_THAT(text, ::testing::HasSubstr("--lr was 0.005, is 0.001"));
    EXPECT_THAT(text, ::testing::HasSubstr("--steps was 6, is 8"));
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("--seed")));
  });
  EXPECT_EQ(metric_lines(config.out).size(), 8U);
}

TEST_F(Resume, SaysThatTheBaseOfAnAdapterHasOtherWeights) {
  AdapterOptions adapter;
  adapter.config.targets.names = {"q_proj"};
  config.adapter = adapter;
  TrainConfig changed = config;
  changed.model = write_tiny_llama("another", {.tied = true, .head = StoredHead::kEqual});
  changed.steps = 7;
  on_ranks(1, [&](const DeviceMesh& mesh) {
    train(config, mesh);
    std::string text;
    train(changed, mesh, {.on_resume = [&](const LoadedCheckpoint& loaded) { text = loaded.findings.at(0).why; }});
    EXPECT_THAT(text, ::testing::HasSubstr("the weights of --model was 1 files"));
  });
}

TEST_F(Resume, StartsFromTheModelWhereThereIsNothing) {
  config.steps = 2;
  on_ranks(2, [&](const DeviceMesh& mesh) {
    int told = 0;
    train(config, mesh, {.on_nothing_to_resume = [&] { ++told; }});
    EXPECT_EQ(told, mesh.rank() == 0 ? 1 : 0);
  });
}

TEST_F(Resume, RefusesADirectoryWithoutACheckpoint) {
  config.resume = fresh_directory("nothing");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    expect_refusal_of_rank(mesh, 0, [&] { train(config, mesh); }, Code::kNoCheckpoint, {"nothing"});
  });
  EXPECT_FALSE(fs::exists(config.out));
}

TEST_F(Resume, WithoutItARunWithCheckpointsIsRefused) {
  TrainConfig again = config;
  again.resume.reset();
  on_ranks(1, [&](const DeviceMesh& mesh) {
    train(config, mesh);
    fs::remove(config.out / "metrics.jsonl");
    fs::remove(config.out / "summary.json");
    fs::remove_all(config.out / "export");
    expect_refusal([&] { train(again, mesh); }, Code::kOutputExists, {"checkpoints", "--resume"});
  });
}

TEST_F(Resume, OfAFinishedRunExportsAgain) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    train(config, mesh);
    TrainConfig again = config;
    again.export_dtype = DType::kBF16;
    const RunSummary summary = train(again, mesh);
    EXPECT_TRUE(summary.steps.empty());
  });
  const Checkpoint exported = Checkpoint::open(config.out / "export");
  EXPECT_EQ(exported.tensors().front().dtype, DType::kBF16);
  EXPECT_EQ(exported.config().dtype(), DType::kBF16);
  EXPECT_EQ(metric_lines(config.out).size(), 6U);
}

TEST_F(Resume, TwoJobsWithOneDirectoryAreRefused) {
  const DirectoryLock other = DirectoryLock::take(config.out);
  on_ranks(2, [&](const DeviceMesh& mesh) {
    expect_refusal_of_rank(mesh, 0, [&] { train(config, mesh); }, Code::kDirectoryInUse, {"run"});
  });
}

TEST(StopSignals, AreTakenNoteOfWhileOneLives) {
  {
    const StopSignals signals;
    EXPECT_EQ(StopSignals::received(), 0);
    ::raise(SIGUSR1);
    ::raise(SIGTERM);
    EXPECT_EQ(StopSignals::received(), SIGUSR1); // the first
  }
  {
    const StopSignals signals;
    EXPECT_EQ(StopSignals::received(), 0);
  }
  EXPECT_EXIT(::raise(SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
}

} // namespace
} // namespace tieshard::testing

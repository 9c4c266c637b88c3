#include "tieshard/runtime/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tieshard/core/base/process_memory.h"

#include "tests/support/collective_log.h"
#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

/// A file of 400 tokens below the vocabulary of write_tiny_llama, which repeat themselves.
fs::path write_tokens() {
  const fs::path path = fresh_directory("data") / "tokens.bin";
  std::vector<std::uint16_t> tokens(400);
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::uint16_t>(index * 5 % 37);
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 2));
  return path;
}

TrainConfig config_for(const fs::path& model, const fs::path& out) {
  TrainConfig config;
  config.model = model;
  config.data = write_tokens();
  config.out = out;
  config.steps = 6;
  config.sequence = 8;
  config.batch = 2;
  config.lr = 5e-3;
  config.clip = 1.0;
  return config;
}

/// Sums of the same numbers in another order: measured at most 1e-6 over six steps (losses near 3.6).
constexpr double kAccumulationBound = 1e-5;
constexpr double kReplicaBound = 1e-5;

class Train : public ::testing::TestWithParam<int> {};

TEST_P(Train, LeavesMetricsASummaryAndAnExportThatLoads) {
  const auto out = fresh_directory("out") / "run";
  const TrainConfig config = config_for(write_tiny_llama("model", {}), out);
  const int ranks = GetParam();
  on_ranks(ranks, [&](const DeviceMesh& mesh) {
    int loads = 0;
    int steps = 0;
    int exports = 0;
    std::atomic<std::uint64_t> bytes = 0;
    const RunSummary summary = train(config,
                                     mesh,
                                     {.on_load_progress = [&](std::uint64_t more, std::uint64_t) { bytes += more; },
                                      .on_load = [&](const ParallelModel&, double) { ++loads; },
                                      .on_step = [&](const StepMetrics&) { ++steps; },
                                      .on_export = [&](const ExportReport&) { ++exports; }});
    ASSERT_EQ(summary.steps.size(), 6U);
    EXPECT_LT(summary.steps.back().loss, summary.steps.front().loss);
    EXPECT_EQ(summary.steps.front().step, 1);
    EXPECT_EQ(summary.steps.front().tokens, 2 * 8 * mesh.size());
    ASSERT_EQ(summary.ranks.size(), static_cast<std::size_t>(mesh.size()));
    for (const RankMemory& memory : summary.ranks) {
      EXPECT_GT(memory.before_load, 1U << 20);
      EXPECT_GE(memory.after_load, memory.before_load);
      EXPECT_GE(memory.end, memory.after_load);
    }
    const bool first = mesh.rank() == 0; // the others have nothing to say
    EXPECT_EQ(loads, first ? 1 : 0);
    EXPECT_EQ(steps, first ? 6 : 0);
    EXPECT_EQ(exports, first ? 1 : 0);
    EXPECT_EQ(bytes.load() > 0, first);
    EXPECT_NO_THROW(parallelize(out / "export", mesh, {}));
  });
  const std::string lines = read_text_file(out / "metrics.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 6);
  const auto summary = nlohmann::json::parse(read_text_file(out / "summary.json"));
  EXPECT_EQ(summary.at("losses").size(), 6U);
  EXPECT_EQ(summary.at("ranks").size(), static_cast<std::size_t>(ranks));
}

TEST_P(Train, RefusesAnOutputThatHoldsARunBeforeItLoadsAnything) {
  const auto model = write_tiny_llama("model", {.tied = false, .head = StoredHead::kAbsent}); // cannot be loaded
  const auto out = fresh_directory("out");
  std::ofstream(out / "metrics.jsonl") << "of another run\n";
  const TrainConfig config = config_for(model, out);
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const auto run = [&] { train(config, mesh); };
    if (mesh.rank() == 0) {
      expect_refusal(run, Code::kOutputExists, {"metrics.jsonl"});
    } else {
      expect_refusal(run, Code::kPeerFailed, {"stage output directory", "rank 0 says"});
    }
  });
  EXPECT_EQ(read_text_file(out / "metrics.jsonl"), "of another run\n");
}

TEST_P(Train, TakesAnOutputDirectoryThatHoldsOtherFiles) {
  const auto out = fresh_directory("out");
  std::ofstream(out / "notes.txt") << "mine\n";
  TrainConfig config = config_for(write_tiny_llama("model", {}), out);
  config.steps = 1;
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) { EXPECT_NO_THROW(train(config, mesh)); });
  EXPECT_EQ(read_text_file(out / "notes.txt"), "mine\n");
}

TEST_P(Train, WithoutStepsExportsWhatItLoaded) {
  const auto model = write_tiny_llama("model", {});
  const auto out = fresh_directory("out") / "run";
  TrainConfig config = config_for(model, out);
  config.steps = 0;
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) { train(config, mesh); });
  EXPECT_EQ(read_text_file(out / "export" / "config.json"), read_text_file(model / "config.json"));
  on_ranks(1, [&](const DeviceMesh& mesh) {
    const ParallelModel before = parallelize(model, mesh, {});
    const ParallelModel after = parallelize(out / "export", mesh, {});
    expect_shards(*after.state, values_of(*before.model), 0.0);
  });
}

TEST_P(Train, StopsOnEveryRankAtATokenOutsideTheVocabulary) {
  const auto out = fresh_directory("out") / "run";
  TrainConfig config = config_for(write_tiny_llama("model", {.vocab = 30}), out); // the tokens go to 36
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    try {
      train(config, mesh);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_TRUE(error.diagnostic().code == Code::kTokenOutOfRange || error.diagnostic().code == Code::kPeerFailed)
          << error.what();
    }
  });
  EXPECT_FALSE(fs::exists(out / "export"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Train, ::testing::Values(1, 2), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

TEST(TrainInBfloat16Compute, FollowsTheFloat32Run) {
  const auto model = write_tiny_llama("model", {});
  const auto out = fresh_directory("out");
  const TrainConfig base = config_for(model, out / "wide"); // writes the tokens: once, before there are ranks
  on_ranks(2, [&](const DeviceMesh& mesh) {
    TrainConfig config = base;
    config.shuffle = false;
    const RunSummary wide = train(config, mesh);
    config.out = out / "narrow";
    config.compute_dtype = at::kBFloat16;
    const RunSummary narrow = train(config, mesh);
    for (std::size_t step = 0; step < wide.steps.size(); ++step) {
      EXPECT_NEAR(narrow.steps[step].loss, wide.steps[step].loss, 0.02) << step;
      EXPECT_NE(narrow.steps[step].loss, wide.steps[step].loss) << step; // it is another arithmetic
    }
  });
}

/// The same run in two ways: the losses of each step, on every rank.
void expect_equal_losses(const RunSummary& one, const RunSummary& other, double bound) {
  ASSERT_EQ(one.steps.size(), other.steps.size());
  for (std::size_t step = 0; step < one.steps.size(); ++step) {
    EXPECT_NEAR(one.steps[step].loss, other.steps[step].loss, bound) << step;
    EXPECT_NEAR(one.steps[step].grad_norm, other.steps[step].grad_norm, 20 * bound) << step;
    EXPECT_EQ(one.steps[step].tokens, other.steps[step].tokens);
  }
}

TEST(GradientAccumulation, EqualsTheLargerBatch) {
  const auto model = write_tiny_llama("model", {});
  const auto out = fresh_directory("out");
  TrainConfig config = config_for(model, out / "large");
  config.batch = 4;
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const RunSummary large = train(config, mesh);
    TrainConfig accumulating = config;
    accumulating.out = out / "accumulated";
    accumulating.batch = 1;
    accumulating.gradient_accumulation_steps = 4;
    expect_equal_losses(train(accumulating, mesh), large, kAccumulationBound);
  });
}

TEST(GradientAccumulation, ExchangesGradientsWithTheLastPartOnly) {
  const auto model = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    ParallelizeOptions options;
    options.fsdp.gradient_divide_factor = 1.0;
    const ParallelModel parallel = parallelize(model, mesh, options);
    const at::Tensor ids = at::arange(3 * 8, at::kLong).reshape({3, 8});
    const auto reductions = [&](std::int64_t steps) {
      CollectiveLog log;
      backward_global_mean(*parallel.model, mesh, ids, ids, steps);
      const std::vector<std::string> calls = log.take();
      return std::ranges::count_if(calls, [](const std::string& call) { return call.starts_with("reduce_scatter"); });
    };
    const auto once = reductions(1);
    EXPECT_EQ(once, 3); // two layers and the root
    EXPECT_EQ(reductions(3), once);
  });
}

TEST(ActivationCheckpointing, ChangesNoBitOfARun) {
  const auto model = write_tiny_llama("model", {});
  const auto out = fresh_directory("out");
  const TrainConfig config = config_for(model, out / "kept");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const RunSummary kept = train(config, mesh);
    TrainConfig computed_again = config;
    computed_again.out = out / "again";
    computed_again.activation_checkpointing = true;
    expect_equal_losses(train(computed_again, mesh), kept, 0);
  });
  EXPECT_EQ(read_text_file(out / "kept" / "export" / "model.safetensors"),
            read_text_file(out / "again" / "export" / "model.safetensors"));
}

TEST(ReshardAndPrefetch, ChangeNoBitOfARun) {
  const auto model = write_tiny_llama("model", {});
  const auto out = fresh_directory("out");
  const TrainConfig config = config_for(model, out / "default");
  on_ranks(4, [&](const DeviceMesh& mesh) {
    const RunSummary expected = train(config, mesh);
    TrainConfig other = config;
    other.export_model = false;
    other.out = out / "kept";
    other.reshard_after_forward = false;
    expect_equal_losses(train(other, mesh), expected, 0);
    other.out = out / "neighbours";
    other.reshard_after_forward = std::int64_t{2};
    other.forward_prefetch = 1;
    other.backward_prefetch = 2;
    expect_equal_losses(train(other, mesh), expected, 0);
  });
}

TEST(TrainWithReplicas, EqualsOneAxis) {
  const auto model = write_tiny_llama("model", {});
  const auto out = fresh_directory("out");
  const TrainConfig config = config_for(model, out / "axis");
  const int port = loopback_port();
  on_ranks(4, [&](const DeviceMesh& mesh) {
    const RunSummary one_axis = train(config, mesh);
    const RankEnvironment environment{.rank = mesh.rank(), .world_size = 4, .master_port = port};
    const DeviceMesh grid = DeviceMesh::connect(environment, std::chrono::seconds(60), {2, 2});
    TrainConfig replicated = config;
    replicated.out = out / "grid";
    expect_equal_losses(train(replicated, grid), one_axis, kReplicaBound);
    EXPECT_NO_THROW(parallelize(out / "grid" / "export", mesh, {}));
  });
}

TEST(PeakResidentBytes, GrowWithWhatIsTouchedAndNeverFall) {
  on_ranks(1, [](const DeviceMesh&) {
    const std::uint64_t before = peak_resident_bytes();
    constexpr std::int64_t kBytes = 64 << 20;
    {
      const at::Tensor touched = at::ones({kBytes}, at::kByte);
    }
    const std::uint64_t after = peak_resident_bytes();
    EXPECT_GE(after, before + kBytes * 9 / 10);
    EXPECT_LE(after, before + kBytes * 3 / 2);
    EXPECT_GE(peak_resident_bytes(), after);
  });
}

} // namespace
} // namespace tieshard::testing

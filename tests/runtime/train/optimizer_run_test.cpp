// What a run does with its optimizer, schedule and groups, on several ranks.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tieshard/runtime/train/build_optimizer.h"
#include "tieshard/runtime/train/trainer.h"

#include "tests/support/adapted_llama.h"
#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

/// Sums of the same numbers in another order, over six steps of losses near 3.6.
constexpr double kRanksBound = 1e-5;

TrainConfig config_for(const fs::path& model, const fs::path& out) {
  TrainConfig config;
  config.model = model;
  config.data = fresh_directory("data") / "tokens.bin";
  std::vector<std::uint16_t> tokens(400);
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::uint16_t>(index * 5 % 37);
  }
  std::ofstream(config.data, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 2));
  config.out = out;
  config.steps = 6;
  config.sequence = 8;
  config.batch = 2;
  config.lr = 5e-3;
  config.shuffle = false;
  return config;
}

std::vector<double> losses(const RunSummary& summary) {
  std::vector<double> all;
  for (const StepMetrics& step : summary.steps) {
    all.push_back(step.loss);
  }
  return all;
}

std::vector<double> rates(const RunSummary& summary) {
  std::vector<double> all;
  for (const StepMetrics& step : summary.steps) {
    all.push_back(step.lr);
  }
  return all;
}

/// Losses that a run on one rank wrote, for runs on others to be compared with.
std::vector<double> losses_of_one_rank(TrainConfig config, const std::string& name) {
  config.out /= name;
  config.batch *= 2;
  config.export_model = false;
  on_ranks(1, [&](const DeviceMesh& mesh) { train(config, mesh); });
  return nlohmann::json::parse(read_text_file(config.out / "summary.json")).at("losses").get<std::vector<double>>();
}

TEST(TrainWithAnyOptimizer, LearnsAndIsTheSameOnOneRankAndOnTwo) {
  TrainConfig config = config_for(write_tiny_llama("model", {}), fresh_directory("out"));
  config.export_model = false;
  config.momentum = 0.9;
  config.nesterov = true;
  config.param_groups = {parse_param_group_rule("norm:lr=1e-3,weight_decay=0"),
                         parse_param_group_rule("lm_head:lr=2e-3")};
  config.schedule = {.kind = LrScheduleKind::kCosine, .warmup = 1, .min_ratio = 0.1};
  for (const auto& [kind, rate] :
       {std::pair{OptimizerKind::kAdamW, 5e-3}, {OptimizerKind::kSgd, 5e-2}, {OptimizerKind::kLion, 1e-3}}) {
    config.optimizer = kind;
    config.lr = rate;
    const std::string name = concat("kind-", static_cast<int>(kind));
    const std::vector<double> expected = losses_of_one_rank(config, name);
    on_ranks(2, [&](const DeviceMesh& mesh) {
      TrainConfig shared = config;
      shared.out = config.out / (name + "-shared");
      const RunSummary summary = train(shared, mesh);
      EXPECT_THAT(losses(summary), ::testing::Pointwise(::testing::DoubleNear(kRanksBound), expected)) << name;
      EXPECT_LT(summary.steps.back().loss, summary.steps.front().loss) << name;
    });
  }
}

TEST(TrainInBfloat16, TakesEveryKindOfUpdateAndIsTheSameOnOneRankAndOnTwo) {
  TrainConfig config = config_for(write_tiny_llama("model", {}), fresh_directory("out"));
  config.export_model = false;
  config.param_dtype = at::kBFloat16;
  config.compute_dtype = at::kBFloat16;
  for (const Bf16Update update : {Bf16Update::kNearest, Bf16Update::kMasterWeights, Bf16Update::kStochasticRounding}) {
    config.bf16_update = update;
    on_ranks(2, [&](const DeviceMesh& mesh) {
      TrainConfig mine = config;
      mine.out = config.out / concat("update-", static_cast<int>(update));
      const RunSummary summary = train(mine, mesh);
      EXPECT_LT(summary.steps.back().loss, summary.steps.front().loss) << static_cast<int>(update);
    });
  }
}

TEST(TrainInBfloat16, AnUpdateRuleThatAnAdapterHasNoUseForIsRefused) {
  TrainConfig config = config_for(write_tiny_llama("model", {}), fresh_directory("out"));
  config.export_model = false;
  config.param_dtype = at::kBFloat16;
  config.compute_dtype = at::kBFloat16;
  config.bf16_update = Bf16Update::kMasterWeights;
  config.adapter = AdapterOptions{.config = lora_on({"q_proj"})};
  on_ranks(1, [&](const DeviceMesh& mesh) {
    TrainConfig mine = config;
    mine.out = config.out / "adapter";
    expect_refusal([&] { train(mine, mesh); }, Code::kBadFlag, {"--bf16-update", "an adapter in float32"});
    mine.out = config.out / "saved";
    mine.adapter->config.modules_to_save = {"norm"}; // trained in the dtype of the base
    EXPECT_NO_THROW(train(mine, mesh));
  });
}

TEST(TrainWithASchedule, HasTheRateOfEachStepInItsMetrics) {
  TrainConfig config = config_for(write_tiny_llama("model", {}), fresh_directory("out") / "run");
  config.export_model = false;
  config.lr = 0.5;
  config.schedule = {.kind = LrScheduleKind::kLinear, .warmup = 2};
  on_ranks(1, [&](const DeviceMesh& mesh) {
    const RunSummary summary = train(config, mesh);
    EXPECT_THAT(rates(summary), ::testing::ElementsAre(0, 0.25, 0.5, 0.375, 0.25, 0.125));
  });
}

TEST(TrainWithASchedule, ByTokensCountsThoseOfAllRanks) {
  const auto model = write_tiny_llama("model", {});
  TrainConfig config = config_for(model, fresh_directory("out"));
  config.export_model = false;
  config.schedule = {.kind = LrScheduleKind::kWsd, .warmup = 2, .decay = 3};
  on_ranks(2, [&](const DeviceMesh& mesh) {
    TrainConfig steps = config;
    steps.out = config.out / "steps";
    TrainConfig tokens = config;
    tokens.out = config.out / "tokens";
    tokens.schedule_by_tokens = true;
    tokens.schedule.warmup *= 2 * 2 * 8; // ranks, sequences of a rank, tokens
    tokens.schedule.decay = 3 * 2 * 2 * 8;
    const RunSummary by_steps = train(steps, mesh);
    const RunSummary by_tokens = train(tokens, mesh);
    EXPECT_EQ(rates(by_tokens), rates(by_steps));
    EXPECT_EQ(losses(by_tokens), losses(by_steps));
  });
}

TEST(TrainWithASchedule, ThatDoesNotFitIsRefusedBeforeAnythingIsMade) {
  TrainConfig config = config_for(write_tiny_llama("model", {}), fresh_directory("out") / "run");
  config.schedule = {.kind = LrScheduleKind::kCosine, .warmup = 7};
  on_ranks(1, [&](const DeviceMesh& mesh) {
    expect_refusal([&] { train(config, mesh); }, Code::kBadFlag, {"within the 6 of the run, got 7"});
  });
  EXPECT_FALSE(fs::exists(config.out));
}

TEST(TrainWithParamGroups, RefusesAPatternThatTakesNothingOnEveryRank) {
  TrainConfig config = config_for(write_tiny_llama("model", {}), fresh_directory("out") / "run");
  config.param_groups = {parse_param_group_rule("router:lr=1")};
  on_ranks(2, [&](const DeviceMesh& mesh) {
    expect_refusal([&] { train(config, mesh); }, Code::kUnknownParameter, {"router:lr=1"});
  });
}

/// A rate that throws the weights so far that every later loss and gradient is NaN.
TrainConfig exploding(const fs::path& model, const fs::path& out, std::int64_t steps) {
  TrainConfig config = config_for(model, out);
  config.lr = 1e30;
  config.steps = steps;
  return config;
}

TEST(ANonFiniteGradient, StopsARunOnEveryRank) {
  const TrainConfig config = exploding(write_tiny_llama("model", {}), fresh_directory("out") / "run", 5);
  on_ranks(2, [&](const DeviceMesh& mesh) {
    try {
      train(config, mesh);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("non-finite-gradient"));
    }
  });
}

TEST(ANonFiniteGradient, IsSkippedByAllRanksTogetherWhichChangesNothing) {
  const auto model = write_tiny_llama("model", {});
  const auto out = fresh_directory("out");
  const TrainConfig once = exploding(model, out / "once", 1);
  TrainConfig more = exploding(model, out / "more", 5);
  more.on_nonfinite_gradient = OnNonFiniteGradient::kSkip;
  on_ranks(2, [&](const DeviceMesh& mesh) {
    train(once, mesh);
    std::vector<std::int64_t> told;
    const RunSummary summary = train(more, mesh, {.on_skipped_step = [&](std::int64_t step, const Diagnostic& finding) {
                                       told.push_back(step);
                                       EXPECT_EQ(finding.level, Level::kWarning);
                                       EXPECT_THAT(finding.where, ::testing::HasSubstr("rank 0/2, model."));
                                       EXPECT_THAT(finding.where, ::testing::HasSubstr("rank 1/2, model."));
                                     }});
    EXPECT_FALSE(summary.steps.front().skipped);
    for (std::size_t step = 1; step < summary.steps.size(); ++step) {
      EXPECT_TRUE(summary.steps[step].skipped);
    }
    EXPECT_EQ(told, mesh.rank() == 0 ? std::vector<std::int64_t>({2, 3, 4, 5}) : std::vector<std::int64_t>());
  });
  EXPECT_EQ(read_text_file(out / "once" / "export" / "model.safetensors"),
            read_text_file(out / "more" / "export" / "model.safetensors"));
  EXPECT_EQ(nlohmann::json::parse(read_text_file(out / "more" / "summary.json")).at("skipped_steps"), 4);
}

} // namespace
} // namespace tieshard::testing

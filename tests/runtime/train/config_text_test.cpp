// Every field that decides a run's numbers or collectives is compared over the ranks before anything is loaded.

#include "tieshard/runtime/train/config_text.h"

#include <fstream>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/train/trainer.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> as_map(const std::vector<NamedText>& texts) {
  std::map<std::string, std::string> map;
  for (const NamedText& text : texts) {
    EXPECT_TRUE(map.emplace(text.name, text.value).second) << text.name << " stands twice";
  }
  return map;
}

/// Names whose values `change` alters.
std::vector<std::string> changed_by(const std::function<void(TrainConfig&)>& change) {
  TrainConfig config;
  const auto before = as_map(describe(config));
  change(config);
  std::vector<std::string> names;
  for (const auto& [name, value] : as_map(describe(config))) {
    if (before.at(name) != value) {
      names.push_back(name);
    }
  }
  return names;
}

TEST(ConfigText, TellsTheSmallestChangeOfANumber) {
  const auto changed = changed_by([](TrainConfig& config) { config.lr = std::nextafter(config.lr, 1.0); });
  EXPECT_THAT(changed, ::testing::ElementsAre("--lr"));
  EXPECT_EQ(as_map(describe({})).at("--lr"), "0.0001");
}

TEST(ConfigText, TellsEachFieldByItsFlag) {
  const std::map<std::string, std::function<void(TrainConfig&)>> changes = {
      {"--steps", [](TrainConfig& config) { ++config.steps; }},
      {"--batch", [](TrainConfig& config) { ++config.batch; }},
      {"--gradient-accumulation-steps", [](TrainConfig& config) { ++config.gradient_accumulation_steps; }},
      {"--seq", [](TrainConfig& config) { ++config.sequence; }},
      {"--weight-decay", [](TrainConfig& config) { config.weight_decay = 0.5; }},
      {"--clip", [](TrainConfig& config) { config.clip = 1; }},
      {"--param-dtype", [](TrainConfig& config) { config.param_dtype = at::kDouble; }},
      {"--compute-dtype", [](TrainConfig& config) { config.compute_dtype = at::kBFloat16; }},
      {"--shard-dim", [](TrainConfig& config) { config.shard_dim = ShardDimPolicy::kFirst; }},
      {"--dim", [](TrainConfig& config) { config.shard_dims["a"] = 1; }},
      {"--reshard-after-forward", [](TrainConfig& config) { config.reshard_after_forward = std::int64_t{2}; }},
      {"--forward-prefetch", [](TrainConfig& config) { ++config.forward_prefetch; }},
      {"--backward-prefetch", [](TrainConfig& config) { ++config.backward_prefetch; }},
      {"--activation-checkpointing", [](TrainConfig& config) { config.activation_checkpointing = true; }},
      {"--no-export", [](TrainConfig& config) { config.export_model = false; }},
      {"--no-shuffle", [](TrainConfig& config) { config.shuffle = false; }},
      {"--seed", [](TrainConfig& config) { config.seed = std::uint64_t{1} << 63; }},
      {"--data-dtype", [](TrainConfig& config) { config.data_dtype = TokenDtype::kUint32; }},
      {"--data-format", [](TrainConfig& config) { config.data_format = TokenFormat::kLlmC; }},
      {"the documents", [](TrainConfig& config) { config.document_separator = 0; }},
      {"--target-len", [](TrainConfig& config) { config.target = 5; }},
      {"--eval-every", [](TrainConfig& config) { config.eval_every = 5; }},
      {"--eval-samples", [](TrainConfig& config) { config.eval_samples = 5; }},
      {"--tensorboard", [](TrainConfig& config) { config.tensorboard = true; }},
      {"--tie", [](TrainConfig& config) { config.resolve.ties.explicit_ties["a"] = "b"; }},
      {"--untie", [](TrainConfig& config) { config.resolve.ties.untied = {"a"}; }},
      {"--on-tie-conflict", [](TrainConfig& config) { config.resolve.ties.on_conflict = OnTieConflict::kError; }},
      {"--no-rename", [](TrainConfig& config) { config.resolve.rename = false; }},
      {"--init",
       [](TrainConfig& config) {
         config.load.sources.inits.push_back({.fqn = "a", .rule = InitRule::parse("zeros")});
       }},
  };
  for (const auto& [flag, change] : changes) {
    EXPECT_THAT(changed_by(change), ::testing::ElementsAre(flag));
  }
}

TEST(ConfigText, LeavesOutWhatARankHasForItself) {
  EXPECT_THAT(changed_by([](TrainConfig& config) {
                config.threads = 7;
                config.model = "/mnt/elsewhere/model";
                config.data = "/mnt/elsewhere/tokens.bin";
                config.out = "/mnt/elsewhere/out";
                config.load.read_buffer = 1 << 20;
              }),
              ::testing::IsEmpty());
}

fs::path write_tokens(const std::string& name, std::uint16_t first) {
  const fs::path path = fresh_directory(name) / "tokens.bin";
  std::vector<std::uint16_t> tokens(200, 3);
  tokens[0] = first;
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(tokens.data()), 400);
  return path;
}

class SameConfig : public ::testing::TestWithParam<BackendChoice> {};

TEST_P(SameConfig, IsAskedOfAllRanksBeforeAnythingIsLoadedOrMade) {
  TrainConfig config;
  config.model = write_tiny_llama("model", {});
  config.data = write_tokens("data", 1);
  config.out = fresh_directory("out") / "run";
  config.steps = 1;
  config.sequence = 8;
  const fs::path other_data = write_tokens("other", 2);
  on_ranks(
      2,
      [&](const DeviceMesh& mesh) {
        int loads = 0;
        TrainConfig mine = config;
        const auto run = [&] { train(mine, mesh, {.on_load = [&](const ParallelModel&, double) { ++loads; }}); };
        if (mesh.rank() == 1) {
          mine.lr = 0.5;
          mine.clip = 0.25;
        }
        expect_refusal(
            run,
            Code::kBadEnvironment,
            {mesh.where(), "--lr is 0.0001 on rank 0, 0.5 on rank 1", "--clip is inf on rank 0, 0.25 on rank 1"});
        mine = config;
        mine.data = mesh.rank() == 1 ? other_data : config.data;
        expect_refusal(run, Code::kBadEnvironment, {"the file of --data is 400 bytes of hash ", "on rank 1"});
        EXPECT_EQ(loads, 0);
        EXPECT_FALSE(fs::exists(config.out));
      },
      GetParam());
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         SameConfig,
                         ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo),
                         [](const auto& info) { return info.param == BackendChoice::kShm ? "shm" : "gloo"; });

TEST(SameConfigOnTwoMounts, TakesEqualFilesUnderOtherPaths) {
  const fs::path model = write_tiny_llama("model", {});
  const fs::path copy = fresh_directory("copy") / "model";
  fs::copy(model, copy);
  TrainConfig config;
  config.model = model;
  config.data = write_tokens("data", 1);
  config.steps = 1;
  config.sequence = 8;
  config.export_model = false;
  config.out = fresh_directory("out") / "run";
  const fs::path data_copy = write_tokens("other", 1);
  on_ranks(2, [&](const DeviceMesh& mesh) {
    TrainConfig mine = config;
    if (mesh.rank() == 1) {
      mine.model = copy;
      mine.data = data_copy;
    }
    EXPECT_NO_THROW(train(mine, mesh));
  });
}

} // namespace
} // namespace tieshard::testing

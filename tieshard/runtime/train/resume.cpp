#include "tieshard/runtime/train/resume.h"

#include <string>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/state/generator_state.h"
#include "tieshard/runtime/train/build_optimizer.h"
#include "tieshard/runtime/train/config_text.h"

namespace tieshard {
namespace {

/// Flags that decide no number of a run.
bool decides_nothing(const std::string& flag) {
  return flag == "--no-export" || flag == "--forward-prefetch" || flag == "--backward-prefetch" ||
         flag == "--reshard-after-forward" || flag == "--activation-checkpointing" || flag == "--tensorboard" ||
         flag.find("--eval-") != std::string::npos;
}

void add_changed_flags(const TrainerState& here, LoadedCheckpoint& loaded) {
  std::string changed;
  for (const auto& [flag, value] : here.flags) {
    const auto saved = loaded.trainer.flags.find(flag);
    const std::string before = saved == loaded.trainer.flags.end() ? "not known" : saved->second;
    if (before != value && !decides_nothing(flag)) {
      changed += concat(changed.empty() ? "" : "; ", flag, " was ", before, ", is ", value);
    }
  }
  if (!changed.empty()) {
    loaded.findings.push_back({.level = Level::kWarning,
                               .code = Code::kCheckpointMismatch,
                               .what = "a run goes on with other flags or inputs than it was saved with",
                               .where = loaded.directory.string(),
                               .why = changed,
                               .fix = "nothing, if that is meant; else give the same again"});
  }
}

void restore_generator(const TrainConfig& config, const DeviceMesh& world, const TrainerState& trainer) {
  const auto rank = static_cast<std::size_t>(world.rank());
  if (trainer.generators.size() == static_cast<std::size_t>(world.size())) {
    set_generator_state(world.device(), trainer.generators[rank]);
    return;
  }
  constexpr std::uint64_t kStepStride = 1'000'003; // apart from the seeds of other ranks and of the run's start
  at::manual_seed(config.seed + rank + kStepStride * static_cast<std::uint64_t>(trainer.step));
}

} // namespace

TrainerState fresh_start(const TrainConfig& config) {
  TrainerState start;
  for (const auto& texts : {describe(config), describe_inputs(config)}) {
    for (const NamedText& text : texts) {
      start.flags[text.name] = text.value;
    }
  }
  const NamedText weights = describe_weights(config);
  start.flags[weights.name] = weights.value;
  return start;
}

LoadedCheckpoint resume_run(const TrainConfig& config,
                            const ParallelModel& parallel,
                            torch::optim::Optimizer& optimizer,
                            const std::filesystem::path& directory) {
  LoadedCheckpoint loaded =
      load_checkpoint(*parallel.state, optimizer, optimizer_name(config.optimizer), directory, Verify::kSizes);
  const TrainerState here = fresh_start(config);
  add_changed_flags(here, loaded);
  restore_generator(config, parallel.state->world(), loaded.trainer);
  loaded.trainer.flags = here.flags;
  return loaded;
}

} // namespace tieshard

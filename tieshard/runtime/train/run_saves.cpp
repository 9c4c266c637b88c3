#include "tieshard/runtime/train/run_saves.h"

#include <string>

#include <ATen/ATen.h>

#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/train/build_optimizer.h"
#include "tieshard/runtime/train/run_directory.h"

namespace tieshard {
namespace {

CheckpointWriterOptions writer_options(const TrainConfig& config, const ParallelModel& parallel) {
  return {.keep = config.save.keep,
          .background = config.save.background.has_value(),
          .busy = config.save.background.value_or(BusySave::kWait),
          .overlap_copy = true,
          .frozen = !parallel.lora.has_value(),
          .optimizer = optimizer_name(config.optimizer),
          .source = &parallel.checkpoint};
}

} // namespace

StepEnd exchange(const DeviceMesh& mesh, const StepEnd& mine) {
  at::Tensor numbers = at::empty({3}, at::kDouble);
  auto* const values = numbers.mutable_data_ptr<double>();
  values[0] = mine.seconds;
  values[1] = mine.signal;
  values[2] = mine.due ? 1 : 0;
  all_reduce(mesh, numbers, ReduceOp::kMax, CollectivePurpose::named("the end of a step"));
  return {.seconds = values[0], .signal = static_cast<int>(values[1]), .due = values[2] > 0};
}

RunSaves::RunSaves(const TrainConfig& config,
                   const DeviceMesh& mesh,
                   const ParallelModel& parallel,
                   const torch::optim::Optimizer& optimizer,
                   const TrainObserver& observer,
                   RunSummary& summary)
    : config_(config),
      mesh_(mesh),
      observer_(observer),
      summary_(summary),
      writer_(parallel.state, optimizer, checkpoints_of(config.out), writer_options(config, parallel)) {}

bool RunSaves::due_by_time() const {
  const std::chrono::duration<double, std::ratio<60>> passed = std::chrono::steady_clock::now() - last_;
  return mesh_.rank() == 0 && config_.save.every_minutes > 0 && passed.count() >= config_.save.every_minutes;
}

void RunSaves::after_step(const TrainerState& at, const StepEnd& end) {
  const SaveConfig& save = config_.save;
  const bool saving = save.every_steps > 0 || save.every_minutes > 0;
  const bool last = end.signal != 0 || (saving && at.step == config_.steps);
  const bool due = end.due || (save.every_steps > 0 && at.step % save.every_steps == 0);
  if (last) {
    writer_.finish(); // this one is not to be skipped
  }
  if (last || due) {
    last_ = std::chrono::steady_clock::now();
    if (!writer_.save(at) && mesh_.rank() == 0 && observer_.on_skipped_save) {
      observer_.on_skipped_save(at.step);
    }
  } else if (saving) {
    writer_.prepare();
  }
  report();
}

void RunSaves::finish() {
  writer_.finish();
  report();
}

void RunSaves::report() {
  for (const SaveReport& done : writer_.take_reports()) {
    summary_.saves.push_back(done);
    if (mesh_.rank() == 0 && observer_.on_save) {
      observer_.on_save(done);
    }
  }
}

} // namespace tieshard

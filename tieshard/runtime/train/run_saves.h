// tieshard/runtime/train/run_saves.h
//
// When a run saves its state: every so many steps or minutes, at its end, and when it is told to stop.
//
// Flow: trainer -> [this] -> state/checkpoint_writer

#pragma once

#include <chrono>

#include "tieshard/runtime/state/checkpoint_writer.h"
#include "tieshard/runtime/train/trainer.h"

namespace tieshard {

/// What the ranks know at the end of a step: the same on all once it was exchanged.
struct StepEnd {
  double seconds = 0; ///< of the slowest
  int signal = 0;     ///< that some rank was told to stop by; 0: none
  bool due = false;   ///< the minutes of --save-every are over, by rank 0's clock
};

/// The largest of each over all ranks. A collective.
StepEnd exchange(const DeviceMesh& mesh, const StepEnd& mine);

class RunSaves {
 public:
  /// @param optimizer, parallel, observer, summary  have to live as long
  RunSaves(const TrainConfig& config,
           const DeviceMesh& mesh,
           const ParallelModel& parallel,
           const torch::optim::Optimizer& optimizer,
           const TrainObserver& observer,
           RunSummary& summary);

  /// Whether the minutes are over; on rank 0, false on all others.
  bool due_by_time() const;

  /// Throws what a save in the background failed with on this rank. Call it inside an agree().
  void require_no_failure() {
    writer_.require_no_failure();
  }

  /// Saves where that is due. A collective. @throws as CheckpointWriter::save
  void after_step(const TrainerState& at, const StepEnd& end);

  /// Before the optimizer's step: what the last save copies is read until then. A collective.
  void await_copy() {
    writer_.await_copy();
  }

  /// Waits for what is saved in the background. A collective. @throws as CheckpointWriter::finish
  void finish();

 private:
  void report();

  const TrainConfig& config_;
  const DeviceMesh& mesh_;
  const TrainObserver& observer_;
  RunSummary& summary_;
  CheckpointWriter writer_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

} // namespace tieshard

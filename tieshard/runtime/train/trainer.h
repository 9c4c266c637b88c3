// tieshard/runtime/train/trainer.h
//
// The training run: load, go on from a checkpoint, steps, saves, export.
//
// Flow: train_config -> [this] (parallelize, resume, token_data, build_optimizer, clip_grad_norm, run_saves, export_hf)
//       -> OUT

#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tieshard/runtime/adapters/adapter_weights.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/state/checkpoint_writer.h"
#include "tieshard/runtime/state/hf_export.h"
#include "tieshard/runtime/state/load_checkpoint.h"
#include "tieshard/runtime/train/metrics.h"
#include "tieshard/runtime/train/parallelize.h"
#include "tieshard/runtime/train/train_config.h"

namespace tieshard {

/// Who wants to know how a run goes; called on rank 0 only, from its main thread (on_load_progress from a reader
/// thread).
struct TrainObserver {
  std::function<void(std::uint64_t done, std::uint64_t total)> on_load_progress{}; ///< bytes of rank 0's slices
  std::function<void(const ParallelModel&, double seconds)> on_load{};
  /// What was found in --data or --eval-data, whose flag is given, before anything is loaded.
  std::function<void(const std::string& flag, const TokenData&)> on_data{};
  std::function<void(const StepMetrics&)> on_step{};
  std::function<void(std::int64_t step, const Diagnostic&)> on_skipped_step{}; ///< before its on_step
  std::function<void(const LoadedCheckpoint&)> on_resume{};
  std::function<void()> on_nothing_to_resume{}; ///< asked to go on from OUT, which holds no checkpoint
  std::function<void(const SaveReport&)> on_save{};
  std::function<void(std::int64_t step)> on_skipped_save{}; ///< the one before was still being written
  std::function<void(int signal, std::int64_t step)> on_stop{};
  std::function<void(const ExportReport&)> on_export{};
  std::function<void(const AdapterReport&)> on_adapter{};
};

/// Backward of this rank's part of one global batch: the mean cross entropy over the targets of all ranks together, so
/// that ranks may hold unequal numbers of targets, none included. Gradients of the sharded parameters are those of the
/// global mean. A collective; every rank must call it. Pre: the model was sharded with gradient_divide_factor 1.
///
/// @param labels  int64 [B, T], kIgnoredLabel where there is no target; a rank without data of its own passes any one
///                sequence with no target
/// @param accumulation_steps  equal parts that the rows are computed in, one after the other; must divide B, and be the
///                            same on every rank. Gradients are exchanged in the last part's backward alone.
/// @param info  documents or decoder ids of all rows of this rank; no cache
/// @returns the global mean loss, the same on every rank
/// @throws InputError data-too-short when no rank has a target
double backward_global_mean(LanguageModel& model,
                            const DeviceMesh& mesh,
                            const at::Tensor& ids,
                            const at::Tensor& labels,
                            std::int64_t accumulation_steps = 1,
                            const SequenceInfo& info = {});

/// The token files of a run.
struct RunData {
  TokenData train;
  std::optional<TokenData> eval{}; ///< where --eval-data is given

  /// Reads all of what `eval` will, and of `train` as far as its first target.
  /// @throws InputError unknown-architecture, what Checkpoint::open, TokenData::open and require_evaluable throw
  static RunData open(const TrainConfig& config);
};

/// Runs `config` on the ranks of `mesh`; every rank must call it. SIGTERM and SIGUSR1 end it after the step that it is
/// in, saved, without an export; the summary says so.
/// @throws InputError bad-environment (ranks with different configurations), and what open_run_directory (before
/// anything
///         is loaded), parallelize, TokenData, build_optimizer, resume_run, clip_grad_norm, CheckpointWriter, export_hf
///         and save_adapter throw
RunSummary train(const TrainConfig& config, const DeviceMesh& mesh, const TrainObserver& observer = {});

} // namespace tieshard

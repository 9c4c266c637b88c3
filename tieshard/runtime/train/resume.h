// tieshard/runtime/train/resume.h
//
// Where a run begins: at its start, or where an earlier job's checkpoint stands.
//
// Flow: run_directory, state/load_checkpoint -> [this] -> trainer

#pragma once

#include <filesystem>

#include <torch/optim/optimizer.h>

#include "tieshard/core/state/trainer_state.h"
#include "tieshard/runtime/state/load_checkpoint.h"
#include "tieshard/runtime/train/train_config.h"

namespace tieshard {

/// The state of a run that has not made a step: its flags and inputs, by name.
TrainerState fresh_start(const TrainConfig& config);

/// Parameters, optimizer and random generators as the checkpoint `directory` has them, which was verified before. With
/// as many ranks as saved it, and the same flags, the run goes on with the same bits. On another number of ranks
/// samples come in the same order, and the generators, which only dropout draws from, begin anew from seed, step and
/// rank.
///
/// The findings name flags and inputs that differ from those of the job that saved it.
/// A collective; every rank must call it. @throws as load_checkpoint
LoadedCheckpoint resume_run(const TrainConfig& config,
                            const ParallelModel& parallel,
                            torch::optim::Optimizer& optimizer,
                            const std::filesystem::path& directory);

} // namespace tieshard

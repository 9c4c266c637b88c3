// tieshard/runtime/train/build_optimizer.h
//
// The optimizer and the schedule that a run is told to train with.
//
// Flow: train_config, parallelize -> [this] -> trainer

#pragma once

#include <string>

#include <torch/optim/optimizer.h>

#include "tieshard/core/optim/lr_schedule.h"
#include "tieshard/runtime/optim/guarded_optimizer.h"
#include "tieshard/runtime/train/parallelize.h"
#include "tieshard/runtime/train/train_config.h"

namespace tieshard {

/// "adamw", "sgd", "lion": as flags, checkpoints and messages call it.
std::string optimizer_name(OptimizerKind kind);

/// A guarded FusedAdamW, FusedSgd or Lion over every trainable parameter of the model, in the groups of
/// `config.param_groups`. Pure on each rank, and the same on all.
/// @throws InputError unknown-parameter for a pattern that takes no parameter, bad-flag for a bf16_update that has no
///         trainable parameter in bfloat16; UsageError optimizer-parameter
GuardedOptimizer<torch::optim::Optimizer> build_optimizer(const TrainConfig& config, const ParallelModel& parallel);

/// @param ranks  all ranks of the run
/// @throws InputError bad-flag when the schedule does not fit the run
LrSchedule lr_schedule_of(const TrainConfig& config, std::int64_t ranks);

} // namespace tieshard

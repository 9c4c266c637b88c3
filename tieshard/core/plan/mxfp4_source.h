// tieshard/core/plan/mxfp4_source.h
//
// The blocks and scales that a parameter is decoded from, for those who copy them as they are.
//
// Flow: checkpoint, shard_plan -> [this] -> runtime/state

#pragma once

#include <optional>

#include "tieshard/core/plan/weight_source.h"

namespace tieshard {

/// Blocks and scales of a parameter that is stored as MXFP4, under its own name or an alias; nothing where it is stored
/// otherwise, or by a checkpoint that is not quantised. Pre: find_weight_sources refuses nothing
std::optional<WeightSource> mxfp4_source(const Checkpoint& checkpoint,
                                         const ShardPlan& plan,
                                         const ShardedParameter& parameter);

} // namespace tieshard

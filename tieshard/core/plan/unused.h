// tieshard/core/plan/unused.h
//
// What is said of a load that works: stored tensors that are not read, parameters that no file holds.
//
// Flow: weight_source.cpp -> [this] -> families/family.h

#pragma once

#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/weight_source.h"

namespace tieshard {

/// Adds the tensors that are neither `used` nor another name of a parameter to sources.unused, and a finding for each
/// kind: known-buffer (note), scales of activations (note) and others (warning) as unused-tensor.
/// @param used  one flag a stored tensor: read as values or scales
void list_unused(const Checkpoint& checkpoint,
                 const ShardPlan& plan,
                 const std::vector<bool>& used,
                 WeightSources& sources);

/// Adds the note initialised when a parameter has no stored values.
void list_initialised(const ShardPlan& plan, WeightSources& sources);

} // namespace tieshard

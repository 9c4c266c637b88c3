// tieshard/core/plan/missing.h
//
// What is said when parameters have no value in the files: all of them in one error, with the likeliest remedy.
//
// Flow: weight_source.cpp -> [this] -> families/family.h

#pragma once

#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

/// The error missing-parameter. The remedy is to leave --untie out where that is the cause, a prefix where all missing
/// names are stored under one, the number of layers where whole layers at the end are missing, `--tie` where the family
/// knows a partner of that shape, a rename where a single stored tensor could be meant; `--init` is named after these.
Diagnostic parameters_missing(const Checkpoint& checkpoint,
                              const ShardPlan& plan,
                              const std::vector<const ShardedParameter*>& missing);

} // namespace tieshard

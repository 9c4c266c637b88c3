// tieshard/core/plan/unloadable.h
//
// What is said when a checkpoint cannot fill the parameters of a plan: every offender in one error, with its remedy.
//
// Flow: read_plan.cpp -> [this] -> families/family.h

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

/// A parameter and a stored tensor of another shape.
struct ShapeMismatch {
  const ShardedParameter* parameter;
  const StoredTensor* stored;
};

/// "a, b, c and 3 more": the first 20 names.
std::string list_names(const std::vector<std::string>& names);

/// @throws InputError missing-parameter. The remedy is `--tie` where the family knows a partner of that shape, a prefix
///         where all missing names are stored under one, a rename where a single stored tensor could be meant.
[[noreturn]] void refuse_missing(const Checkpoint& checkpoint,
                                 const ShardPlan& plan,
                                 const std::vector<const ShardedParameter*>& missing);

/// @throws InputError shape-mismatch, naming the fields of config.json that say the sizes
[[noreturn]] void refuse_shapes(const Checkpoint& checkpoint, const std::vector<ShapeMismatch>& mismatches);

/// @throws InputError dtype-not-loadable
[[noreturn]] void refuse_dtypes(const Checkpoint& checkpoint, const std::vector<const StoredTensor*>& offenders);

} // namespace tieshard

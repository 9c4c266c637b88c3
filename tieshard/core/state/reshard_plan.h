// tieshard/core/state/reshard_plan.h
//
// The dimension that each tensor is sharded on afterwards.
//
// Flow: sharded_files, manifest, parameter_names -> [this] -> reshard
// Source: plan/shard_plan.h, whose rules these are: a tied weight on its last dimension only.

#pragma once

#include <vector>

#include "tieshard/core/state/parameter_names.h"
#include "tieshard/core/state/reshard.h"

namespace tieshard {

struct ReshardedTensor {
  const ShardedTensor* tensor = nullptr;
  int dim = -1; ///< -1: all of it on rank 0 (0-dim, packed, or replicated before)
};

/// One entry for each tensor of `files`, in their order. A moment goes with its parameter.
/// Where nothing is asked and no manifest says it: a tensor stays on the dimension that it is cut on, and one that is
/// not cut stays whole where others are; of files that cut nothing (a plain directory), and of a grid, it is the last.
/// @param manifest  may be null; its parameters get their new dim, those that are not stored too
/// @throws UsageError tied-weight-on-vocab, unknown-parameter, bad-shard-dim, bad-rank-count
std::vector<ReshardedTensor> plan_reshard(const ShardedFiles& files,
                                          const ParameterNames& names,
                                          Manifest* manifest,
                                          const ReshardOptions& options);

} // namespace tieshard

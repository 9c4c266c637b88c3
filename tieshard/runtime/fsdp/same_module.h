// tieshard/runtime/fsdp/same_module.h
//
// Whether all ranks are about to shard the same module in the same way. Nothing later would tell: a gather pairs what
// has as many bytes.
//
// Flow: fully_shard -> [this] -> mesh/same_on_ranks

#pragma once

#include <vector>

#include <torch/nn/module.h>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// Compares over all ranks the table of parameters (names, whole shapes, dtypes, whether they are trained, ties, dims,
/// units) and the options. Values are not compared. Costs one exchange of a hash. Every rank of `mesh` must call it.
/// @throws UsageError wrong-state, on every rank, naming the first things that differ, the ranks, and what each has
void require_same_module_on_ranks(const torch::nn::Module& module,
                                  const std::vector<UnitModule>& units,
                                  const ShardPlan& plan,
                                  const DeviceMesh& mesh,
                                  const FullyShardOptions& options);

} // namespace tieshard

// tieshard/runtime/fsdp/shard_checks.h
//
// What fully_shard refuses before it cuts anything, so that a refused module is as it was.
//
// Flow: fully_shard -> [this]

#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// @throws UsageError wrong-state when a unit is empty or given twice, or there is none
void require_new(const std::vector<UnitModule>& units);

/// @throws UsageError unknown-unit for a name in per_unit that no unit has
void require_units(const std::vector<UnitModule>& units, const FullyShardOptions& options);

/// @throws UsageError bad-rank-count for a reshard_after_forward that does not divide the ranks; wrong-state for a
/// dtype
///         that gradients cannot have, a divide factor of 0, a negative prefetch, or an option that the root does not
///         have
void require_options(const FullyShardOptions& options, const DeviceMesh& mesh);

/// @throws UsageError wrong-state when the parameter is not on the mesh's device
void require_device(const std::string& fqn, const at::Tensor& parameter, const DeviceMesh& mesh);

/// Each parameter is one tensor over memory of its own: two tensors over the same would be cut apart, and be untied.
/// @throws UsageError tie-not-shared
void require_own_memory(const torch::nn::Module& module);

} // namespace tieshard

// tieshard/runtime/fsdp/fully_shard.h
//
// The entry: from a module, loaded by a plan or the user's own, to a sharded module.
//
// Flow:   load -> [this] -> fsdp_state -> optim, state, train
// Source: torch.distributed.fsdp.fully_shard (FSDP2, torch 2.13).

#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// Shards any module: its ties (names of one tensor), the plan and the units are found here. The parameters are whole
/// and equal on every rank, as the same seed or the same file makes them; they are not broadcast. Every rank must call
/// it.
///
/// The units are the module itself and what `options.unit_policy` takes inside it. A parameter belongs to the innermost
/// unit that holds all of its names: a weight that several units share lies in their lowest common ancestor, and is
/// whole while any of them runs. What no unit inside takes, the root has.
///
/// The parameters stay the same objects: an optimizer that was built before goes on working. The module's forward must
/// go through the returned state: state->run(unit, input, forward) around each unit, the root's outermost (docs/
/// fully_shard.md). One of our models does so by itself, since the state becomes its unit runner.
///
/// @param module  must outlive the state
/// @throws UsageError still-on-meta, already-sharded, unknown-parameter (an ignored name or tensor that the module does
///         not have), bad-shard-dim, tied-weight-on-vocab, tie-not-shared (two tensors over one memory), bad-rank-count
///         (reshard_after_forward), unknown-unit (per_unit), wrong-state (an option or a parameter that cannot be, or
///         another device than the mesh's), and what the unit policy throws. A module that is refused is as it was
std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options = {});

/// The same for units that the caller lists, in any order. Without `module` itself among them it is a partial wrap:
/// parameters outside all units stay unmanaged, which the state's findings() say and OptimizerGuard refuses, by name.
/// @throws UsageError wrong-state when a unit is empty or given twice, or none is given
std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const std::vector<UnitModule>& units,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options = {});

/// The same for a plan that exists. Parameters are whole, or already this rank's shards as load_shards leaves them.
/// The first of `units` is the root.
///
/// @param module  the module whose names the plan has
/// @throws UsageError still-on-meta, foreign-shape, tie-not-shared, unknown-parameter, wrong-state
std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const std::vector<UnitModule>& units,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options = {});

/// The same for one of our models: its own units, and the state becomes its unit runner. @throws also already-sharded
std::shared_ptr<FsdpState> fully_shard(LanguageModel& model,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options = {});

/// The state of a sharded model, or null.
std::shared_ptr<FsdpState> sharded_state(const LanguageModel& model);

} // namespace tieshard

// tieshard/runtime/fsdp/fully_shard.h
//
// The entry: from a loaded module and a plan to a sharded module.
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
#include "tieshard/runtime/models/causal_lm.h"

namespace tieshard {

/// Shards the parameters of `units` (whole, or already this rank's shards as load_shards leaves them). They stay the
/// same objects: an optimizer that was built before goes on working. Every rank must call it.
///
/// The first of `units` is the root; it owns the parameters that no other unit takes, the tied ones among them.
/// Parameters of `module` outside all units stay unmanaged: OptimizerGuard refuses them by name.
///
/// The module's forward must go through the returned state: state->run(unit, input, forward) around each unit, the
/// root's outermost.
///
/// @param module  the module whose names the plan has; must outlive the state
/// @throws UsageError still-on-meta, foreign-shape, tie-not-shared, unknown-parameter, already-sharded
std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const std::vector<UnitModule>& units,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options = {});

/// The same for one of our models: its own units, and the state becomes its unit runner.
std::shared_ptr<FsdpState> fully_shard(CausalLm& model,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options = {});

/// The state of a sharded model, or null.
std::shared_ptr<FsdpState> sharded_state(const CausalLm& model);

} // namespace tieshard

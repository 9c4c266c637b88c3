// examples/train.cpp
//
// The whole walk, as a program that trains from C++ meets it: open, tie, plan, load, shard, step, export. README.md
// shows the part between the two marks; a test keeps both equal.
//
// Flow: CHECKPOINT_DIR OUT_DIR (under torchrun's variables, or one rank) -> [this] -> OUT_DIR

#include <cstdlib>
#include <iostream>

#include <torch/torch.h>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/tie_registry.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {

void train(const std::string& dir) {
  // README: begin
  const auto checkpoint = Checkpoint::open(dir); // config and headers only, validated
  const auto& config = checkpoint.config();
  const auto& family = require_family(config);
  const auto table = family.table(config);              // names and shapes, from config.json alone
  const auto ties = TieRegistry::of(checkpoint, table); // with the evidence for each tie
  const auto mesh = DeviceMesh::from_environment();     // torchrun, Slurm, mpirun, or one rank
  const auto plan = ShardPlan::build(table, ties, mesh.size(), {.units = family.units(config)});

  auto model = make_model(config, ties);                           // on meta: shapes without bytes
  const auto ledger = load_shards(*model, checkpoint, plan, mesh); // this rank's slices only, each storage once
  fully_shard(*model, plan, mesh, {.mp_policy = {.param_dtype = torch::kBFloat16}});
  validate_shared_object(*model, ties); // embedding and head are still one tensor
  // README: end
}

} // namespace tieshard

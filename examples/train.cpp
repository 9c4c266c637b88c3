// examples/train.cpp
//
// The whole walk, as a program that trains from C++ meets it: open, tie, plan, load, shard, step, export. README.md
// shows the part between the two marks; a test keeps both equal, another one runs it.
//
// Flow: MODEL_DIR TOKENS OUT_DIR (under torchrun, Slurm or mpirun, or alone) -> [this] -> OUT_DIR

#include <iostream>
#include <string>

#include <torch/optim/adamw.h>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/state/hf_export.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"
#include "tieshard/runtime/train/token_data.h"
#include "tieshard/runtime/train/trainer.h"

namespace tieshard {
namespace {

void walk(const std::string& model_dir, const std::string& tokens, const std::string& out_dir) {
  // README: begin
  const auto resolved = resolve_model(model_dir); // headers only; validated; names, and ties with their evidence
  const auto& config = resolved.checkpoint.config();
  const auto mesh = DeviceMesh::from_environment(); // torchrun, Slurm, mpirun or one rank
  const auto plan = ShardPlan::build(resolved.table, resolved.ties, mesh.size(), {.units = resolved.units()});

  const auto model = make_model(config, resolved.ties);                     // on meta: shapes without bytes
  const auto ledger = load_shards(*model, resolved.checkpoint, plan, mesh); // this rank's slices, each storage once
  const auto state = fully_shard(*model, plan, mesh, {.gradient_divide_factor = 1.0});
  auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3));

  auto data = TokenData::open(tokens, {.sequence = 32, .vocab_size = config.integer("vocab_size")});
  for (std::int64_t step = 0; step < 10; ++step) {
    const auto ids = data.batch(step, /*batch=*/2, mesh.rank(), mesh.size());
    const double loss = backward_global_mean(*model, mesh, ids, ids); // the mean over the targets of all ranks
    optimizer.step();
    optimizer.zero_grad();
    std::cout << mesh.where() << " step " << step << " loss " << loss << "\n";
  }
  validate_shared_object(*model, resolved.ties);   // embedding and head are still one tensor
  export_hf(*state, resolved.checkpoint, out_dir); // each storage once; read back before it appears
  // README: end
}

} // namespace
} // namespace tieshard

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: " << arguments[0] << " MODEL_DIR TOKENS OUT_DIR\n";
    return 2;
  }
  try {
    tieshard::walk(arguments[1], arguments[2], arguments[3]);
  } catch (const tieshard::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

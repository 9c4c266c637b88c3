// tests/support/loaded_llama.h
//
// A model of our own, loaded and not yet sharded by fully_shard: what the tests of load, fsdp and optim begin with.

#pragma once

#include <filesystem>
#include <memory>
#include <utility>

#include "tieshard/core/families/family.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard::testing {

/// A model on meta, with the plan for `mesh`.
struct PlannedLlama {
  Checkpoint checkpoint;
  TieRegistry ties;
  std::shared_ptr<LanguageModel> model;
  ShardPlan plan;
};

inline PlannedLlama plan_llama(const std::filesystem::path& directory,
                               const DeviceMesh& mesh,
                               ShardDimPolicy policy = ShardDimPolicy::kLast,
                               at::ScalarType dtype = at::ScalarType::Float) {
  Checkpoint checkpoint = Checkpoint::open(directory);
  const HfConfig& config = checkpoint.config();
  const Family& family = require_family(config);
  TieRegistry ties = TieRegistry::of(checkpoint, family.table(config));
  auto model = make_model(config, ties, {.device = at::kMeta, .dtype = dtype});
  ShardPlan plan = ShardPlan::build(parameter_table(*model),
                                    ties,
                                    mesh.axis("dp_shard").size(),
                                    {.policy = policy, .dims = {}, .units = family.units(config)});
  return {std::move(checkpoint), std::move(ties), std::move(model), std::move(plan)};
}

/// The same with this rank's shards in it. Every rank of `mesh` must call it.
inline PlannedLlama load_llama(const std::filesystem::path& directory,
                               const DeviceMesh& mesh,
                               ShardDimPolicy policy = ShardDimPolicy::kLast,
                               at::ScalarType dtype = at::ScalarType::Float) {
  PlannedLlama planned = plan_llama(directory, mesh, policy, dtype);
  load_shards(*planned.model, planned.checkpoint, planned.plan, mesh);
  return planned;
}

/// The whole model on this rank alone, without fully_shard: the reference that sharded ones are compared with.
inline std::shared_ptr<LanguageModel> load_whole(const std::filesystem::path& directory,
                                                 at::ScalarType dtype = at::ScalarType::Float) {
  return load_llama(directory, DeviceMesh(), ShardDimPolicy::kLast, dtype).model;
}

} // namespace tieshard::testing

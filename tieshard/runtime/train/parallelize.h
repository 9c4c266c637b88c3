// tieshard/runtime/train/parallelize.h
//
// The pipeline from a directory to a sharded model, in its one order.
//
// Flow:   resolved model -> meta model -> plan -> load -> fully_shard, all of it here -> trainer, forward
// Source: torchtitan's parallelize step: models are single-device code, techniques are applied from outside.

#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/adapters/lora_plan.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// A LoRA adapter on the model: a new one by `config`, or that of a PEFT directory.
struct AdapterOptions {
  LoraConfig config{};                          ///< where `directory` is empty
  std::filesystem::path directory{};            ///< adapter_config.json and adapter_model.safetensors
  std::optional<TiedTarget> tied{};             ///< where a target is tied, whatever the configuration says
  at::ScalarType dtype = at::ScalarType::Float; ///< of A, B, their gradients and moments
};

struct ParallelizeOptions {
  ResolveOptions resolve{};                           ///< ties and names that the caller wants
  at::ScalarType param_dtype = at::ScalarType::Float; ///< of the shards, the gradients and the optimizer's state
  ShardDimPolicy shard_dim = ShardDimPolicy::kLast;
  std::map<std::string, int> shard_dims{}; ///< overrides, by name
  FullyShardOptions fsdp{};
  LoadOptions load{};
  std::vector<std::string> freeze{};       ///< patterns of parameters that are not trained (frozen_parameters.h)
  std::optional<AdapterOptions> adapter{}; ///< without: the model alone, all of it trained
};

/// A loaded, sharded model and what it was made from.
struct ParallelModel {
  Checkpoint checkpoint;
  TieRegistry ties;
  ShardPlan plan;
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<FsdpState> state;
  LoadLedger ledger;
  std::optional<LoraPlan> lora;     ///< of the adapter, where there is one
  std::vector<Diagnostic> findings; ///< of checkpoint, names, ties and load: warnings and notes
};

/// Every rank of `mesh` must call it with the same arguments.
/// @throws whatever resolve_model, make_model, frozen_parameters, plan_lora, AdapterFile, ShardPlan::build, load_shards
/// and fully_shard
///         throw; on ranks where nothing failed PeerError peer-failed
ParallelModel parallelize(const std::filesystem::path& directory,
                          const DeviceMesh& mesh,
                          const ParallelizeOptions& options);

} // namespace tieshard

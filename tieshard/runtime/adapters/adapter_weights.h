// tieshard/runtime/adapters/adapter_weights.h
//
// The values of an adapter: initial ones, those of a PEFT directory, and a PEFT directory of those in memory, under any
// number of ranks.
//
// Flow:   core/adapters/adapter_file <-> [this] <-> a module with adapters
// Source: PEFT save_pretrained and load_adapter.

#pragma once

#include <cstdint>
#include <filesystem>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/core/adapters/adapter_file.h"
#include "tieshard/core/adapters/lora_plan.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

/// A whole parameter with the values that `init` gives it: those that load_shards gives its slices.
at::Tensor initial_values(const NamedInit& init, const Shape& shape, at::ScalarType dtype);

/// Fills A, B and the modules_to_save of `module` with this rank's slices of the adapter's tensors; where PEFT saved
/// the weight of the base under an adapted embedding, that too. The parameters hold `shards`' parts, as load_shards or
/// fully_shard leave them. Every rank of `mesh` must call it; when one fails, all throw.
/// @throws InputError what AdapterFile::match throws, not-finite; PeerError io-failed, peer-failed
void load_adapter(torch::nn::Module& module,
                  const AdapterFile& adapter,
                  const LoraPlan& plan,
                  const ShardPlan& shards,
                  const DeviceMesh& mesh);

struct AdapterReport {
  std::filesystem::path directory;
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0; ///< of adapter_model.safetensors
  double seconds = 0;
};

/// Writes `directory` as PEFT does: adapter_config.json, and adapter_model.safetensors with whole tensors in the dtypes
/// of the parameters. Each rank writes its slices; staged, synced, read back and renamed: complete or absent; one of
/// that name is refused, or replaced as a whole. Every rank must call it; all must see one file system.
/// @throws InputError output-exists; UsageError not-sharded (a parameter of the adapter that is not managed); PeerError
///         disk-full, io-failed, peer-failed
AdapterReport save_adapter(const FsdpState& state,
                           const LoraPlan& plan,
                           const std::filesystem::path& directory,
                           Existing existing = Existing::kRefuse);

} // namespace tieshard

// tieshard/runtime/load/shard_loader.h
//
// Fills a module's parameters with this rank's slices, straight from the files.
//
// Flow: checkpoint, shard_plan -> [this] -> the module (holding shards), load_ledger -> fsdp

#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <torch/nn/module.h>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/io/load_ledger.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/weight_source.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

struct LoadOptions {
  int threads = 1;                         ///< reader threads
  std::uint64_t read_buffer = 16 << 20;    ///< bytes that all threads together hold beyond the shards
  bool map = true;                         ///< map what can be mapped; false: copy everything
  bool check_values = true;                ///< look for NaN and infinity, warning not-finite
  std::optional<std::uint64_t> host_ram{}; ///< bytes that the load may add to this process; refused before it reads
  WeightSourceOptions sources{};           ///< initial values for what no file holds
  std::function<void(std::uint64_t done, std::uint64_t total)> on_progress{}; ///< bytes of this rank's slices
};

/// Gives each meta parameter of `module` storage for this rank's slice, in the plan's dtype, and reads it. Each storage
/// is materialized and read once, whatever its names; a parameter that has bytes already is left alone, and the ledger
/// says so. Afterwards no parameter and no buffer is on meta: all that had no bytes, and every buffer, is on
/// mesh.device(), where a parameter's slice goes as soon as it is read. When a rank fails, every parameter stays as it
/// was on all of them. Every rank of `mesh` must call it. A warning not-finite names what any rank found.
///
/// What can be mapped is private pages of the files, so those must stay as they are: docs/loading.md.
///
/// @param plan  for mesh.size() ranks, made from this module's names
/// @throws InputError missing-parameter, shape-mismatch, dtype-not-loadable (see build_read_plan), host-memory;
///         UsageError unknown-parameter (plan and module differ), tie-not-shared, still-on-meta; PeerError io-failed,
///         file-changed, peer-failed
LoadLedger load_shards(torch::nn::Module& module,
                       const Checkpoint& checkpoint,
                       const ShardPlan& plan,
                       const DeviceMesh& mesh,
                       const LoadOptions& options = {});

/// @throws UsageError still-on-meta, naming every parameter and buffer without bytes
void require_materialized(const torch::nn::Module& module);

} // namespace tieshard

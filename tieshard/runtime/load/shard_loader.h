// tieshard/runtime/load/shard_loader.h
//
// Fills a module's parameters with this rank's slices, straight from the files.
//
// Flow: checkpoint, shard_plan -> [this] -> the module (holding shards), load_ledger -> fsdp

#pragma once

#include <cstdint>
#include <functional>

#include <torch/nn/module.h>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/io/load_ledger.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

struct LoadOptions {
  int threads = 1;                                                            ///< reader threads
  std::uint64_t buffer_bytes = 4 << 20;                                       ///< read buffer of each thread
  std::function<void(std::uint64_t done, std::uint64_t total)> on_progress{}; ///< bytes of this rank's slices
};

/// Gives each meta parameter of `module` storage for this rank's slice, in the plan's dtype, and reads it. Each storage
/// is materialized and read once, whatever its names; a parameter that has bytes already is left alone, and the ledger
/// says so. Afterwards no parameter and no buffer is on meta. Every rank of `mesh` must call it.
///
/// @param plan  for mesh.size() ranks, made from this module's names
/// @throws InputError missing-parameter, shape-mismatch, dtype-not-loadable (see build_read_plan); UsageError
///         unknown-parameter (plan and module differ), tie-not-shared, still-on-meta; PeerError io-failed, peer-failed
LoadLedger load_shards(torch::nn::Module& module,
                       const Checkpoint& checkpoint,
                       const ShardPlan& plan,
                       const DeviceMesh& mesh,
                       const LoadOptions& options = {});

/// @throws UsageError still-on-meta, naming every parameter and buffer without bytes
void require_materialized(const torch::nn::Module& module);

} // namespace tieshard

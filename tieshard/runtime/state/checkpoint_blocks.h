// tieshard/runtime/state/checkpoint_blocks.h
//
// What one rank has of a sharded module and its optimizer, as blocks of named tensors.
//
// Flow:   fsdp_state, optimizer_state -> [this] -> checkpoint_writer
// Source: torch.distributed.checkpoint.state_dict's names: `<fqn>.exp_avg`.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "tieshard/core/state/manifest.h"
#include "tieshard/core/state/shard_file_writer.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

/// Blocks of one rank and the memory that they lie in.
struct RankBlocks {
  std::vector<BlockInMemory> model;
  std::vector<BlockInMemory> optimizer;
  std::vector<at::Tensor> held; ///< on the host; the parameters and moments themselves where those are

  std::uint64_t bytes() const;
};

/// One record for each managed parameter, in registration order, the same on every rank. No communication.
/// @param optimizer  may be null: parameters alone
/// @param frozen     whether the values of parameters that require no gradient are stored
/// @throws UsageError optimizer-parameter for a state whose class is not known
std::vector<ParameterRecord> parameter_records(const FsdpState& state,
                                               const torch::optim::Optimizer* optimizer,
                                               bool frozen);

/// This rank's part of each tensor of `records`: its shard; of a tensor that is not sharded all, on the first rank of
/// the axis dp_shard only. Shares memory with parameters and moments on the host. Pre: resharded
RankBlocks rank_blocks(const FsdpState& state,
                       const torch::optim::Optimizer* optimizer,
                       const std::vector<ParameterRecord>& records);

/// Memory of a snapshot. It is kept from one to the next: clearing fresh pages takes longer than copying into them.
class SnapshotBuffer {
 public:
  /// At least `bytes`, every page of them there. @throws std::bad_alloc
  std::byte* reserve(std::uint64_t bytes);

 private:
  std::shared_ptr<void> memory_;
  std::uint64_t bytes_ = 0;
};

/// The same blocks, copied, so that training may go on. They are in `buffer`, which has to live as long.
RankBlocks snapshot(const RankBlocks& blocks, SnapshotBuffer& buffer);

} // namespace tieshard

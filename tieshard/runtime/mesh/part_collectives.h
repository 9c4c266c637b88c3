// tieshard/runtime/mesh/part_collectives.h
//
// all_gather and reduce_scatter of many tensors at once, each cut over the ranks on a dimension of its own. Over shared
// memory the parts go straight between the shards and the whole tensors; otherwise (Gloo, and NCCL for tensors on GPUs)
// they are packed into one buffer for each collective.
//
// Flow:   fsdp -> [this] -> collectives, core/shm
// Source: FSDP2's foreach_all_gather and foreach_reduce (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

/// A whole tensor and the parts of it that each rank holds.
struct CutTensor {
  at::Tensor shard;                ///< this rank's own, contiguous, shaped as parts[own]
  std::vector<at::Tensor> parts{}; ///< views of the whole tensor, by rank; a part may be empty
};

/// parts[r] = shard of rank r, for every tensor and rank. All on one device, of any dtypes. Every rank must call it
/// with the same sizes.
/// @throws PeerError collective-failed
void all_gather_parts(const DeviceMesh& mesh, const std::vector<CutTensor>& tensors, const std::string& unit);

/// The same, begun: see start_all_gather_into_tensor(). The shards may change meanwhile where they are packed (Gloo).
/// @returns waits for the end, after which the parts are there; call it once
[[nodiscard]] std::function<void()> start_all_gather_parts(const DeviceMesh& mesh,
                                                           const std::vector<CutTensor>& tensors,
                                                           const std::string& unit);

/// shard = the sum over all ranks of their parts[own], for every tensor: accumulated in the wider of the two dtypes, in
/// rank order over shared memory. parts of one dtype; shards of the same, or float32 of bfloat16 parts.
/// Every rank must call it with the same sizes. @throws PeerError collective-failed
void reduce_scatter_parts(const DeviceMesh& mesh, const std::vector<CutTensor>& tensors, const std::string& unit);

} // namespace tieshard

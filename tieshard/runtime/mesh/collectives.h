// tieshard/runtime/mesh/collectives.h
//
// The collectives of the project, all of them. On one rank they are copies. Every rank of the mesh must call each one,
// in the same order; each waits at most the mesh's timeout. The connection is that of the tensors' device: the mesh's
// device or the host (UsageError wrong-state for another one).
//
// Flow:   load, fsdp, optim, state, train -> [this] -> c10d
// Source: torch.distributed (all_gather_into_tensor, reduce_scatter_tensor, all_reduce, broadcast, barrier).
//
// All throw PeerError collective-failed, naming the operation, this rank and the purpose, when another rank is gone or
// late. Over shared memory the message names that rank too, and sums are made in rank order: the same bits in every
// run.
//
// Note: [Ranks at different places] Over shared memory a call carries its kind, size, dtype and purpose; ranks that
//       differ in any of them all fail at once, and each message says where either rank is. Gloo and NCCL pair what
//       they are given, by order alone: there the texts of all_gather_text, and so every agree(), carry their purpose,
//       and collectives of tensors carry none, since it would be one more message for each.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/mesh/collective_purpose.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

/// One collective between several ranks, as this rank sees it.
struct CollectiveCall {
  std::string_view operation; ///< "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"
  std::string axis;           ///< name of the mesh's axis
  std::string purpose;        ///< as CollectivePurpose::text()
  std::int64_t bytes = 0;     ///< of the larger of input and output
};

/// From now on `observer` sees each collective of this process, before it begins and on the thread that calls it; null
/// for none. For tests and profiles. Call it while no collective runs.
void observe_collectives(std::function<void(const CollectiveCall&)> observer);

/// output [size * n] = the inputs [n] of all ranks, in rank order. Contiguous, same dtype.
void all_gather_into_tensor(const DeviceMesh& mesh,
                            at::Tensor output,
                            at::Tensor input,
                            const CollectivePurpose& purpose = {});

/// The same, begun: over Gloo and NCCL it goes on while the caller computes; over shared memory, which the ranks' own
/// processors move, it is done when this returns. `output` and `input` must live, unchanged, until the returned
/// function has run.
/// @returns waits for the end; call it once. It throws what all of these throw
[[nodiscard]] std::function<void()> start_all_gather_into_tensor(const DeviceMesh& mesh,
                                                                 at::Tensor output,
                                                                 at::Tensor input,
                                                                 const CollectivePurpose& purpose = {});

/// output [n] = this rank's n elements of the elementwise sum of all ranks' inputs [size * n].
void reduce_scatter_tensor(const DeviceMesh& mesh,
                           at::Tensor output,
                           at::Tensor input,
                           const CollectivePurpose& purpose = {});

enum class ReduceOp { kSum, kMin, kMax };

/// Replaces `tensor` on every rank by the elementwise reduction over all ranks.
void all_reduce(const DeviceMesh& mesh,
                at::Tensor tensor,
                ReduceOp op = ReduceOp::kSum,
                const CollectivePurpose& purpose = {});

/// Replaces `tensor` on every rank by that of rank `root`.
void broadcast(const DeviceMesh& mesh, at::Tensor tensor, std::int64_t root = 0, const CollectivePurpose& purpose = {});

/// Runs `work`, one collective of `bytes` (as in CollectiveCall); what it throws becomes the PeerError that all of
/// these throw.
void run_collective(const DeviceMesh& mesh,
                    const char* operation,
                    const CollectivePurpose& purpose,
                    std::int64_t bytes,
                    const std::function<void()>& work);

/// Waits until every rank is here.
void barrier(const DeviceMesh& mesh, const CollectivePurpose& purpose = {});

/// The texts of all ranks, in rank order; lengths may differ. Ranks that call it for different purposes are refused,
/// whatever connects them.
std::vector<std::string> all_gather_text(const DeviceMesh& mesh,
                                         const std::string& text,
                                         const CollectivePurpose& purpose);

} // namespace tieshard

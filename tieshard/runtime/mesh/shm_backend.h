// tieshard/runtime/mesh/shm_backend.h
//
// A c10d backend for CPU tensors of ranks on one host, over memory that they share.
//
// Flow:   process_group -> [this] -> core/shm
// Source: c10d's Backend interface in torch 2.13.
//
// It has all_gather, reduce_scatter (into one tensor), all_reduce, broadcast and barrier; sum, min and max. Ranks are
// added in rank order, so results never depend on who is fast. A call returns when it is done: its Work is complete.

#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tieshard/core/base/dtype.h"

namespace c10d {
class Backend;
}

namespace tieshard {

class RollCall;
class ShmGroup;

/// A backend, or why there is none; the same on every rank.
struct ShmConnection {
  std::shared_ptr<c10d::Backend> backend;
  std::string why_not;
};

/// Connects the ranks of a group if all of them run on this host and can share memory; an agreement, whose outcome is
/// the same on every rank. Every rank must call it, also one that does not want to (`wanted` false).
///
/// @param calls  of the group's ranks; its store is not needed afterwards, once all of them have passed a barrier
/// @throws PeerError rendezvous-failed when a rank does not come
ShmConnection connect_shm(RollCall& calls, bool wanted);

/// The dtype of a tensor that can be summed there. @throws c10::Error for another one
DType shm_dtype(const at::Tensor& tensor);

/// What a backend of connect_shm works with; null for another one.
ShmGroup* shm_group(c10d::Backend& backend);

} // namespace tieshard

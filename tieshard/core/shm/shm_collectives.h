// tieshard/core/shm/shm_collectives.h
//
// all_gather, reduce_scatter, all_reduce, broadcast and barrier over memory that the ranks share, in pieces that stay
// in the cache: each byte is copied into the ring once and read from there by whoever needs it, into its last place.
//
// Flow:   runtime/mesh/shm_backend -> [this] -> shm_group, reduce_elements
// Source: torch.distributed for what each one does.
//
// Every rank of the group must make the same calls in the same order; a call that differs in kind, size, dtype or
// reduction is refused. Ranks are reduced in rank order, so results have the same bits in every run and, of all_reduce,
// on every rank. All throw PeerError collective-failed, naming this rank, the operation and the rank that ended, left,
// or did not come in time; the group is unusable from then on. A pointer may be null where there are no bytes.

#pragma once

#include <cstddef>

#include "tieshard/core/shm/shm_group.h"

namespace tieshard {

/// output [size * bytes] = the inputs [bytes] of all ranks, in rank order. The input may be this rank's place in the
/// output; it may not overlap it otherwise.
void all_gather(ShmGroup& group, std::byte* output, const std::byte* input, std::size_t bytes);

/// output [count] = this rank's `count` elements of the reduction of all ranks' inputs [size * count]. The output may
/// be this rank's place in the input; it may not overlap it otherwise.
void reduce_scatter(
    ShmGroup& group, std::byte* output, const std::byte* input, std::size_t count, DType dtype, Reduction reduction);

/// Replaces `data` [count] on every rank by the reduction over all ranks.
void all_reduce(ShmGroup& group, std::byte* data, std::size_t count, DType dtype, Reduction reduction);

/// Replaces `data` [bytes] on every rank by that of rank `root`.
void broadcast(ShmGroup& group, std::byte* data, std::size_t bytes, std::uint32_t root);

/// Waits until every rank is here.
void barrier(ShmGroup& group);

} // namespace tieshard

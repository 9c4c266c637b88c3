// tieshard/runtime/mesh/all_to_all.h
//
// Every rank gives every other one bytes of the host's memory, from and to the places where they lie. Over shared
// memory they go straight there; over Gloo they are packed into one buffer for each side.
//
// Flow:   state -> [this] -> collectives, core/shm
// Source: torch.distributed.all_to_all_single.

#pragma once

#include <cstddef>
#include <span>

#include "tieshard/core/shm/shm_regions.h"
#include "tieshard/runtime/mesh/collective_purpose.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

/// received[r] = what rank r has in its sent[own], for every rank r. Parts of ranks may differ in size, and be empty.
/// Every rank must call it.
///
/// @param received  by rank; received[r] has as many bytes here as sent[own] has on rank r
/// @param most      no rank sends more bytes to another one; the same number on every rank
/// @throws PeerError collective-failed
void all_to_all(const DeviceMesh& mesh,
                std::span<const Part> received,
                std::span<const Part> sent,
                std::size_t most,
                const CollectivePurpose& purpose);

} // namespace tieshard

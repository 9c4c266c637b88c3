// tieshard/runtime/mesh/shm_rendezvous.h
//
// Whether the ranks of a group can share memory, and the memory if they can. Agreed over a store, by way of rank 0.
//
// Flow: shm_backend -> [this] -> core/shm

#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tieshard/core/shm/shm_group.h"

namespace tieshard {

/// A group that has met, or why there is none.
struct ShmMeeting {
  std::unique_ptr<ShmGroup> group;
  std::string why_not;
};

/// What two ranks have in common exactly when they can share memory: the running kernel and the process namespace
/// (containers of one host have several). Nothing that is equal anywhere else where these are unknown.
std::string host_identity();

/// See connect_shm. @throws what the store throws; PeerError collective-failed when a rank ends meanwhile
ShmMeeting meet_over_shm(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout, bool wanted);

} // namespace tieshard

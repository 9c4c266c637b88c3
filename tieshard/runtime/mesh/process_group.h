// tieshard/runtime/mesh/process_group.h
//
// The connection between the ranks, found over a TCP store: shared memory where all are on one host, else Gloo. The
// only file that touches Gloo's types.
//
// Flow:   rank_environment -> [this] (roll_call, shm_backend) -> device_mesh
// Source: torch.distributed's env:// rendezvous; c10d ProcessGroupGloo and TCPStore of torch 2.13.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/runtime/mesh/rank_environment.h"

namespace c10d {
class Backend;
class Store;
} // namespace c10d

namespace tieshard {

/// A connection of all ranks. The backend is of the same kind on every rank.
struct Connection {
  std::shared_ptr<c10d::Backend> backend;
  std::string note; ///< why the ranks do not share memory; empty where they do
};

/// Connects all ranks of `environment`. Every rank must call it. Where environment.backend is kAuto on every rank and
/// all ranks can share memory, they do; otherwise all of them use Gloo.
///
/// @param timeout  how long to wait for the others here, and in each later collective
/// @throws PeerError rendezvous-failed (names the address, how long it waited, and the ranks that did not come);
///         InputError bad-environment where shared memory was asked for and cannot be had
Connection connect_ranks(const RankEnvironment& environment, std::chrono::milliseconds timeout);

/// Where ranks that are connected already meet again, to form smaller groups. Rank 0 of `environment` hosts it.
struct MeetingPoint {
  RankEnvironment environment;
  std::chrono::milliseconds timeout{};
  std::shared_ptr<c10d::Store> store;
};

/// Hosts a meeting point at a free port. @param port  is set to it
MeetingPoint host_meeting_point(const RankEnvironment& environment, std::chrono::milliseconds timeout, int& port);

/// Finds the one that rank 0 hosts. @throws PeerError rendezvous-failed
MeetingPoint find_meeting_point(const RankEnvironment& environment, std::chrono::milliseconds timeout, int port);

/// Connects some of the ranks. Each of them must call it.
/// @param name   of the group; used once, and by this group alone
/// @param place  of this rank in `ranks`
/// @param ranks  the group's, as numbers among all ranks
/// @throws as connect_ranks
Connection connect_group(const MeetingPoint& point,
                         const std::string& name,
                         std::size_t place,
                         const std::vector<std::int64_t>& ranks);

/// The address of this host that leads to `target`, as the kernel would choose it; nothing when there is no way.
std::optional<std::string> local_address_towards(const std::string& target, int port);

} // namespace tieshard

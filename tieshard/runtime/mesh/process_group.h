// tieshard/runtime/mesh/process_group.h
//
// The connection between the ranks, found over a TCP store: shared memory where all are on one host, else Gloo. The
// only file that touches Gloo's types.
//
// Flow:   rank_environment -> [this] (-> shm_backend) -> device_mesh
// Source: torch.distributed's env:// rendezvous; c10d ProcessGroupGloo and TCPStore of torch 2.13.

#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tieshard/runtime/mesh/rank_environment.h"

namespace c10d {
class Backend;
}

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
/// @throws PeerError rendezvous-failed (names the address and how long it waited); InputError bad-environment where
///         shared memory was asked for and cannot be had
Connection connect_ranks(const RankEnvironment& environment, std::chrono::milliseconds timeout);

} // namespace tieshard

// tieshard/runtime/mesh/process_group.h
//
// The connection between the ranks: a c10d Gloo backend over a TCP store. The only file that touches Gloo's types.
//
// Flow:   rank_environment -> [this] -> device_mesh
// Source: torch.distributed's env:// rendezvous; c10d ProcessGroupGloo and TCPStore of torch 2.13.

#pragma once

#include <chrono>
#include <memory>

#include "tieshard/runtime/mesh/rank_environment.h"

namespace c10d {
class Backend;
}

namespace tieshard {

/// Connects all ranks of `environment`. Every rank must call it.
///
/// @param timeout  how long to wait for the others here, and in each later collective
/// @throws PeerError rendezvous-failed (names the address and how long it waited)
std::shared_ptr<c10d::Backend> connect_gloo(const RankEnvironment& environment, std::chrono::milliseconds timeout);

} // namespace tieshard

// tieshard/runtime/mesh/local_launcher.h
//
// `--ranks N` on one host: makes N ranks of this process and sees to it that they end together.
//
// Flow:   cli -> [this] -> N processes with torchrun's variables
// Source: torch.distributed.run, in what its workers see (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "tieshard/core/base/error.h"

namespace tieshard {

/// More on one host is a slip of the finger that would bring the host down.
inline constexpr std::int64_t kMostLocalRanks = 1024;

/// What SIGTERM and SIGUSR1, as a scheduler sends them before it takes the machine away, do to this process.
enum class OnStopSignal {
  kEnd,    ///< all ranks are ended
  kPassOn, ///< the ranks get the signal and end by themselves, in their own time; a second one ends them
};

struct LaunchOptions {
  std::int64_t ranks = 1;
  OnStopSignal on_stop = OnStopSignal::kEnd;
  std::chrono::milliseconds grace{5000};           ///< after a failure or a signal: how long the others may take to end
  std::function<void(const Diagnostic&)> on_death; ///< called when a rank dies of a signal, or does not end
};

/// Forks the ranks and waits for all of them. They are copies of this process rather than new programs, so that
/// LibTorch is loaded once, and not again by each. Must be called from a single-threaded process, before anything that
/// a copy may not share is open.
///
/// When a rank fails or this process gets SIGINT, SIGTERM or SIGHUP (but see OnStopSignal), the others get SIGTERM
/// after `grace` and SIGKILL after another `grace`; when this process is killed, the kernel kills them. No process is
/// left behind, nor is one started after such an event.
///
/// @returns nothing in a rank, whose environment then has torchrun's variables; in this process, when all ranks have
///         ended, 0, else the exit status of the rank that failed first (128 + signal when a signal ended it or this
///         process)
/// @throws InputError bad-rank-count, before anything is started, for fewer than 1 or more than kMostLocalRanks;
///         PeerError io-failed when a process cannot be started (those that were are ended)
std::optional<int> launch_local(const LaunchOptions& options);

} // namespace tieshard

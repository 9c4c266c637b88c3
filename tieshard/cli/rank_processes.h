// tieshard/cli/rank_processes.h
//
// One process for each rank on this host, each with an answer that comes back as JSON.
//
// Flow: load -> [this] -> the kernel

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tieshard/cli/json_output.h"
#include "tieshard/core/base/error.h"

namespace tieshard::cli {

/// Why a rank has no answer.
struct RankFailure {
  std::vector<std::int64_t> ranks; ///< those that failed in this way, rising
  Diagnostic diagnostic;
  int status = 0; ///< exit status that says who can act
};

struct RankAnswers {
  std::vector<OrderedJson> answers;    ///< of the ranks that succeeded, in the order asked for
  std::vector<RankFailure> failures{}; ///< each kind once, in the order of its first rank
};

/// Calls `work(rank)` for each of `ranks` in a process of its own, which is forked from this one and shares its memory
/// until it writes to it. Waits for all of them, also when some fail; what one throws is its failure, and a process
/// that ends without an answer is rank-died.
///
/// Pre: no other thread runs. @throws PeerError io-failed when a process cannot be started (those that run are ended)
RankAnswers run_rank_processes(const std::vector<std::int64_t>& ranks,
                               const std::function<OrderedJson(std::int64_t)>& work);

} // namespace tieshard::cli

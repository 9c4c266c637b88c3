// tieshard/core/plan/rank_bytes.h
//
// What every rank and every host holds and reads, for any number of ranks at the cost of one walk over the parameters.
//
// Flow: shard_plan, weight_source -> [this] -> cli/plan

#pragma once

#include <cstdint>
#include <vector>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/weight_source.h"

namespace tieshard {

/// Ranks `first` to `last` (inclusive), whose parts of every parameter are equal in size. All figures are of one rank.
struct RankBytes {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t elements = 0;      ///< of its shards
  std::uint64_t memory_bytes = 0; ///< of its shards, in the parameters' dtypes
  std::uint64_t read_bytes = 0;   ///< that it asks of the files: slices in their stored dtypes, scales included
  std::uint64_t init_bytes = 0;   ///< the part of memory_bytes that no file holds
  std::uint64_t expert_bytes = 0; ///< the part of memory_bytes that is of experts

  friend bool operator==(const RankBytes&, const RankBytes&) = default;
};

/// In the order of the ranks. A part of a plain tensor counts its elements; scales count whole for each rank that holds
/// a part of their tensor.
/// @param sources  those of `plan`
std::vector<RankBytes> rank_bytes(const ShardPlan& plan, const WeightSources& sources);

/// Hosts `first` to `last` (inclusive), which read equally much. Figures are of one host.
struct HostBytes {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t ranks = 0;       ///< on the host; the last host may have fewer than the others
  std::uint64_t read_bytes = 0; ///< union of what its ranks ask for: what its page cache is filled with

  friend bool operator==(const HostBytes&, const HostBytes&) = default;
};

/// Rank r is on host r / ranks_per_host. In the order of the hosts. Pre: ranks_per_host >= 1.
std::vector<HostBytes> host_bytes(const ShardPlan& plan, const WeightSources& sources, std::int64_t ranks_per_host);

} // namespace tieshard

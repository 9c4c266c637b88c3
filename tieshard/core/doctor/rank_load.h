// tieshard/core/doctor/rank_load.h
//
// What loading costs each rank, ranks whose parts are alike counted together.
//
// Flow: plan -> [this] -> doctor.h

#pragma once

#include <cstdint>
#include <vector>

#include "tieshard/core/plan/read_plan.h"

namespace tieshard {

/// Ranks `first` to `last`, which hold parts of equal shapes. All figures are of one rank.
struct RankLoad {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t elements = 0;
  std::uint64_t shard_bytes = 0; ///< in memory
  std::uint64_t read_bytes = 0;  ///< of the files, in their stored dtypes
};

/// Every rank of `plan`, in order. The work grows with the parameters and the kinds of rank, not with the ranks.
std::vector<RankLoad> rank_loads(const ShardPlan& plan, const WeightSources& sources);

} // namespace tieshard

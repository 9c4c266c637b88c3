// tieshard/cli/plan_summary.h
//
// What a ShardPlan costs each rank and each host, in bytes, with equal ones counted together.
//
// Flow: plan -> [this] -> plan/shard_plan.h, plan/rank_bytes.h

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/rank_bytes.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard::cli {

/// Bytes of a rank's AdamW state: exp_avg and exp_avg_sq, in float32 or a wider parameter dtype. Its gradients take
/// memory_bytes.
inline std::uint64_t adamw_bytes(const RankBytes& rank) {
  return 2 * std::max(rank.memory_bytes, 4 * static_cast<std::uint64_t>(rank.elements));
}

/// Parameters, gradients and AdamW state of a rank.
inline std::uint64_t training_bytes(const RankBytes& rank) {
  return 2 * rank.memory_bytes + adamw_bytes(rank);
}

/// What the ranks exchange in one training step, as bytes that each rank receives, in the parameter dtype. Parts are
/// sent in the size of the largest; the root unit is gathered once, the others for the forward and for the backward.
struct StepTraffic {
  std::uint64_t all_gather_bytes = 0;
  std::uint64_t reduce_scatter_bytes = 0;
  std::uint64_t in_flight_bytes = 0; ///< whole parameters held at a time: the root unit and the largest other one
};

/// The lists are indices into ShardPlan::parameters(). A parameter is in at most one of the lists.
struct PlanSummary {
  std::vector<RankBytes> ranks;
  std::vector<HostBytes> hosts;
  StepTraffic step;
  std::vector<std::size_t> uneven{};     ///< parts differ in size, none is empty
  std::vector<std::size_t> empty{};      ///< some ranks hold nothing of it
  std::vector<std::size_t> replicated{}; ///< 0-dim: whole on every rank
  std::vector<Diagnostic> findings{};    ///< of reading the checkpoint, e.g. unused-tensor; equal on every rank
};

/// @param ranks_per_host  at least 1
/// @throws InputError what find_weight_sources throws (missing-parameter, shape-mismatch, dtype-not-loadable)
PlanSummary summarize(const Checkpoint& checkpoint,
                      const ShardPlan& plan,
                      std::int64_t ranks_per_host,
                      const WeightSourceOptions& options);

/// Bytes of `elements` in memory as `dtype`, one of the wide floats.
std::uint64_t bytes_in_memory(std::int64_t elements, DType dtype);

} // namespace tieshard::cli

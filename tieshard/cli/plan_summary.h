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
#include "tieshard/core/plan/step_traffic.h"

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
/// @param traffic  how a step is made
/// @throws InputError what find_weight_sources throws (missing-parameter, shape-mismatch, dtype-not-loadable)
PlanSummary summarize(const Checkpoint& checkpoint,
                      const ShardPlan& plan,
                      std::int64_t ranks_per_host,
                      const TrafficOptions& traffic,
                      const WeightSourceOptions& options);

/// Bytes of `elements` in memory as `dtype`, one of the wide floats.
std::uint64_t bytes_in_memory(std::int64_t elements, DType dtype);

} // namespace tieshard::cli

// tieshard/cli/plan_summary.h
//
// What a ShardPlan costs each rank, in bytes, with equal ranks counted together.
//
// Flow: plan -> [this] -> plan/shard_plan.h, plan/read_plan.h

#pragma once

#include <cstdint>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard::cli {

/// Ranks `first` to `last` (inclusive), which hold parts of equal shapes. All figures are of one rank.
struct RankGroup {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t elements = 0;         ///< of its parameter shards
  std::uint64_t parameter_bytes = 0; ///< shards in the parameter dtype; gradients take the same
  std::uint64_t adamw_bytes = 0;     ///< exp_avg and exp_avg_sq, in the parameter dtype
  std::uint64_t read_bytes = 0;      ///< of the checkpoint's files, in their stored dtypes

  std::uint64_t total_bytes() const noexcept {
    return 2 * parameter_bytes + adamw_bytes;
  }
};

/// What the ranks exchange in one training step, as bytes that each rank receives, in the parameter dtype. Parts are
/// sent in the size of the largest; the root unit is gathered once, the others for the forward and for the backward.
struct StepTraffic {
  std::uint64_t all_gather_bytes = 0;
  std::uint64_t reduce_scatter_bytes = 0;
  std::uint64_t in_flight_bytes = 0; ///< whole parameters held at a time: the root unit and the largest other one
};

/// The lists are indices into ShardPlan::parameters(). A parameter is in at most one of the lists.
struct PlanSummary {
  std::vector<RankGroup> ranks;
  StepTraffic step;
  std::vector<std::size_t> uneven;     ///< parts differ in size, none is empty
  std::vector<std::size_t> empty;      ///< some ranks hold nothing of it
  std::vector<std::size_t> replicated; ///< 0-dim: whole on every rank
  std::vector<Diagnostic> findings;    ///< of reading the checkpoint, e.g. unused-tensor; equal on every rank
};

/// @throws InputError what build_read_plan throws (missing-parameter, shape-mismatch, dtype-not-loadable)
PlanSummary summarize(const Checkpoint& checkpoint, const ShardPlan& plan);

/// Bytes of `elements` in memory as `dtype`, one of the wide floats.
std::uint64_t bytes_in_memory(std::int64_t elements, DType dtype);

} // namespace tieshard::cli

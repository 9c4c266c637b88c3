// tieshard/core/plan/step_traffic.h
//
// What the ranks exchange in one training step, and how long that takes at a bandwidth.
//
// Flow:   shard_plan -> [this] -> plan_choices, cli/plan
// Source: runtime/fsdp, whose collectives this counts; the ring algorithm, by which each of n ranks receives n-1 parts
// of an
//         all_gather or reduce_scatter and twice (n-1)/n of an all_reduce.

#pragma once

#include <cstdint>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

struct TrafficOptions {
  DType compute_dtype = DType::kF32; ///< that parameters are gathered in; gradients are reduced in the plan's
  bool reshard_after_forward = true; ///< else a layer is gathered once a step, not twice
  std::int64_t replicas = 1;         ///< copies of the model (HSDP), whose gradients are all_reduced
};

/// Bytes that each rank receives in a step. Parts are sent in the size of the largest. The root unit is gathered once.
struct StepTraffic {
  std::uint64_t all_gather_bytes = 0;
  std::uint64_t reduce_scatter_bytes = 0;
  std::uint64_t all_reduce_bytes = 0; ///< between replicas
  std::uint64_t padding_bytes = 0;    ///< of what is gathered and reduced, what fills parts up to the largest
  std::uint64_t in_flight_bytes =
      0; ///< whole parameters held at a time: the root unit and the largest other one, or all

  std::uint64_t received() const {
    return all_gather_bytes + reduce_scatter_bytes + all_reduce_bytes;
  }
};

StepTraffic step_traffic(const ShardPlan& plan, const TrafficOptions& options);

/// Seconds that `bytes` take at `bytes_per_second`, which is above 0; latency and what computation hides are not in it.
double seconds_at(std::uint64_t bytes, std::uint64_t bytes_per_second);

} // namespace tieshard

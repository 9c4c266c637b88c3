#include "tieshard/cli/plan_summary.h"

#include <algorithm>

#include "tieshard/core/plan/read_plan.h"

namespace tieshard::cli {
namespace {

// The size of each parameter's part: ranks that agree in all of them need the same bytes.
std::vector<std::int64_t> part_sizes(const ShardPlan& plan, std::int64_t rank) {
  std::vector<std::int64_t> sizes;
  for (const ShardedParameter& parameter : plan.parameters()) {
    sizes.push_back(plan.range(parameter, rank).size);
  }
  return sizes;
}

RankGroup group_of(const ShardPlan& plan, std::int64_t rank, const ReadPlan& reads) {
  RankGroup group{.first = rank, .last = rank};
  for (const ShardedParameter& parameter : plan.parameters()) {
    const std::int64_t elements = numel(plan.local_shape(parameter, rank));
    group.elements += elements;
    group.parameter_bytes += bytes_in_memory(elements, parameter.dtype);
  }
  group.adamw_bytes = 2 * group.parameter_bytes;
  group.read_bytes = reads.bytes();
  return group;
}

StepTraffic traffic_of(const ShardPlan& plan) {
  StepTraffic traffic;
  std::uint64_t largest = 0;
  for (std::size_t u = 0; u < plan.units().size(); ++u) {
    std::uint64_t whole = 0;
    std::uint64_t received = 0;
    for (const std::size_t i : plan.units()[u].parameters) {
      const ShardedParameter& parameter = plan.parameters()[i];
      whole += bytes_in_memory(numel(parameter.shape), parameter.dtype);
      if (parameter.dim >= 0) {
        received += static_cast<std::uint64_t>(plan.ranks() - 1) *
                    bytes_in_memory(numel(plan.local_shape(parameter, 0)), parameter.dtype);
      }
    }
    const bool is_root = u == 0;
    traffic.all_gather_bytes += is_root ? received : 2 * received;
    traffic.reduce_scatter_bytes += received;
    traffic.in_flight_bytes += is_root ? whole : 0;
    largest = is_root ? largest : std::max(largest, whole);
  }
  traffic.in_flight_bytes += largest;
  return traffic;
}

} // namespace

std::uint64_t bytes_in_memory(std::int64_t elements, DType dtype) {
  return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(bits(dtype)) / 8;
}

PlanSummary summarize(const Checkpoint& checkpoint, const ShardPlan& plan) {
  PlanSummary summary;
  summary.step = traffic_of(plan);
  std::vector<std::int64_t> last_sizes;
  for (std::int64_t rank = 0; rank < plan.ranks(); ++rank) {
    std::vector<std::int64_t> sizes = part_sizes(plan, rank);
    if (rank == 0 || sizes != last_sizes) {
      ReadPlan reads = build_read_plan(checkpoint, plan, rank);
      summary.ranks.push_back(group_of(plan, rank, reads));
      summary.findings = std::move(reads.findings);
      last_sizes = std::move(sizes);
    }
    summary.ranks.back().last = rank;
  }
  for (std::size_t i = 0; i < plan.parameters().size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    const std::int64_t largest = plan.range(parameter, 0).size;
    const std::int64_t smallest = plan.range(parameter, plan.ranks() - 1).size;
    if (parameter.dim < 0) {
      summary.replicated.push_back(i);
    } else if (smallest == 0 && largest > 0) {
      summary.empty.push_back(i);
    } else if (smallest != largest) {
      summary.uneven.push_back(i);
    }
  }
  return summary;
}

} // namespace tieshard::cli

#include "tieshard/cli/plan_summary.h"

#include <algorithm>
#include <utility>

#include "tieshard/core/plan/weight_source.h"

namespace tieshard::cli {
namespace {

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

PlanSummary summarize(const Checkpoint& checkpoint,
                      const ShardPlan& plan,
                      std::int64_t ranks_per_host,
                      const WeightSourceOptions& options) {
  WeightSources sources = find_weight_sources(checkpoint, plan, options);
  PlanSummary summary{.ranks = rank_bytes(plan, sources),
                      .hosts = host_bytes(plan, sources, ranks_per_host),
                      .step = traffic_of(plan),
                      .findings = std::move(sources.findings)};
  for (std::size_t i = 0; i < plan.parameters().size(); ++i) {
    const std::vector<ChunkRun> runs = plan.runs(plan.parameters()[i]);
    if (plan.parameters()[i].dim < 0) {
      summary.replicated.push_back(i);
    } else if (runs.size() > 1) {
      (runs.back().size == 0 ? summary.empty : summary.uneven).push_back(i);
    }
  }
  return summary;
}

} // namespace tieshard::cli

#include "tieshard/cli/plan_summary.h"

#include <algorithm>
#include <utility>

#include "tieshard/core/plan/weight_source.h"

namespace tieshard::cli {
std::uint64_t bytes_in_memory(std::int64_t elements, DType dtype) {
  return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(bits(dtype)) / 8;
}

PlanSummary summarize(const Checkpoint& checkpoint,
                      const ShardPlan& plan,
                      std::int64_t ranks_per_host,
                      const TrafficOptions& traffic,
                      const WeightSourceOptions& options) {
  WeightSources sources = find_weight_sources(checkpoint, plan, options);
  PlanSummary summary{.ranks = rank_bytes(plan, sources),
                      .hosts = host_bytes(plan, sources, ranks_per_host),
                      .step = step_traffic(plan, traffic),
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

#include "tieshard/core/doctor/rank_load.h"

#include <set>

namespace tieshard {
namespace {

/// Ranks at which the size of some parameter's part changes: where the last whole chunk ends, and one further where a
/// smaller chunk follows.
std::set<std::int64_t> first_of_each_kind(const ShardPlan& plan) {
  std::set<std::int64_t> firsts{0};
  for (const ShardedParameter& parameter : plan.parameters()) {
    const std::int64_t chunk = plan.range(parameter, 0).size;
    if (parameter.dim < 0 || chunk == 0) {
      continue;
    }
    const std::int64_t whole = parameter.shape[static_cast<std::size_t>(parameter.dim)] / chunk;
    firsts.insert(whole);
    firsts.insert(whole + 1);
  }
  firsts.erase(firsts.lower_bound(plan.ranks()), firsts.end());
  return firsts;
}

RankLoad load_of(const ShardPlan& plan, const WeightSources& sources, std::int64_t rank) {
  RankLoad load{.first = rank, .last = rank, .read_bytes = build_read_plan(sources, plan, rank).bytes()};
  for (const ShardedParameter& parameter : plan.parameters()) {
    const std::int64_t elements = numel(plan.local_shape(parameter, rank));
    load.elements += elements;
    load.shard_bytes += static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(bits(parameter.dtype)) / 8;
  }
  return load;
}

bool alike(const ShardPlan& plan, std::int64_t a, std::int64_t b) {
  for (const ShardedParameter& parameter : plan.parameters()) {
    if (plan.range(parameter, a).size != plan.range(parameter, b).size) {
      return false;
    }
  }
  return true;
}

} // namespace

std::vector<RankLoad> rank_loads(const ShardPlan& plan, const WeightSources& sources) {
  std::vector<RankLoad> loads;
  for (const std::int64_t first : first_of_each_kind(plan)) {
    if (loads.empty() || !alike(plan, loads.back().first, first)) {
      if (!loads.empty()) {
        loads.back().last = first - 1;
      }
      loads.push_back(load_of(plan, sources, first));
    }
  }
  loads.back().last = plan.ranks() - 1;
  return loads;
}

} // namespace tieshard

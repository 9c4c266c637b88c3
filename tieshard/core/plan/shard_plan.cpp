#include "tieshard/core/plan/shard_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::size_t kRootUnit = 0;

/// Index into ShardPlan::units() of the unit that takes `fqn`: the root is 0, `units` follow it.
std::size_t unit_of(std::string_view fqn, const std::vector<UnitSpec>& units) {
  const auto taker = std::ranges::find_if(units, [fqn](const UnitSpec& unit) { return fqn.starts_with(unit.prefix); });
  return taker == units.end() ? kRootUnit : static_cast<std::size_t>(taker - units.begin()) + 1;
}

/// The unit of all names of a parameter; the root when they fall into several, since a unit frees what it gathered.
std::size_t common_unit(const ParameterInfo& info,
                        const std::vector<std::string>& aliases,
                        const std::vector<UnitSpec>& units) {
  const std::size_t unit = unit_of(info.fqn, units);
  const bool together =
      std::ranges::all_of(aliases, [&](const std::string& alias) { return unit_of(alias, units) == unit; });
  return together ? unit : kRootUnit;
}

/// The overrides, by canonical name, with dimensions counted from the front.
class DimOverrides {
 public:
  DimOverrides(const std::map<std::string, int>& dims, const TieRegistry& ties, const ParameterTable& table) {
    std::map<std::string_view, const ParameterInfo*> known;
    for (const ParameterInfo& info : table) {
      known.emplace(info.fqn, &info);
    }
    for (const auto& [asked_name, asked_dim] : dims) {
      const auto found = known.find(asked_name);
      if (found == known.end()) {
        throw UsageError({.code = Code::kUnknownParameter,
                          .what = "a shard dimension is asked for a name that no parameter has",
                          .where = asked_name,
                          .why = concat("none of the ", table.size(), " names is this one"),
                          .fix = "write the parameter's full dotted name"});
      }
      add(ties.canonical(asked_name), asked_name, asked_dim, found->second->shape);
    }
  }

  std::optional<int> find(const std::string& canonical) const {
    const auto found = dims_.find(canonical);
    return found == dims_.end() ? std::nullopt : std::optional<int>(found->second);
  }

 private:
  void add(const std::string& canonical, const std::string& asked_name, int asked_dim, const Shape& shape) {
    const int rank = static_cast<int>(shape.size());
    const int dim = asked_dim < 0 ? asked_dim + rank : asked_dim;
    if (dim < 0 || dim >= rank) {
      throw UsageError({.code = Code::kBadShardDim,
                        .what = "a shard dimension that the parameter does not have",
                        .where = asked_name,
                        .why = concat("shape ", to_string(shape), " has ", rank, " dimensions, got ", asked_dim),
                        .fix = rank == 0 ? "leave a 0-dim parameter replicated"
                                         : concat("ask for a dimension from ", -rank, " to ", rank - 1)});
    }
    const auto [entry, added] = dims_.emplace(canonical, dim);
    if (!added && entry->second != dim) {
      throw UsageError({.code = Code::kBadShardDim,
                        .what = "two shard dimensions are asked for one parameter",
                        .where = concat(asked_name, ", which is ", canonical),
                        .why = concat("expected one dimension, got ", entry->second, " and ", dim),
                        .fix = "ask for one dimension, under one of the names"});
    }
  }

  std::map<std::string, int> dims_;
};

int shard_dim(const ParameterInfo& info, bool tied, std::optional<int> asked, ShardDimPolicy policy) {
  const int last = static_cast<int>(info.shape.size()) - 1;
  if (tied) {
    if (asked && *asked != last) {
      throw UsageError({.code = Code::kTiedWeightOnVocab,
                        .what = "a tied weight is asked onto another dimension than its last",
                        .where = info.fqn,
                        .why = concat("shape ",
                                      to_string(info.shape),
                                      ": expected dimension ",
                                      last,
                                      ", on which the embedding and the head agree, got ",
                                      *asked),
                        .fix = "leave the dimension of a tied weight to the plan, or ask for its last one"});
    }
    return last;
  }
  if (asked) {
    return *asked;
  }
  return policy == ShardDimPolicy::kLast ? last : std::min(last, 0);
}

} // namespace

ShardPlan ShardPlan::build(const ParameterTable& table,
                           const TieRegistry& ties,
                           std::int64_t ranks,
                           const ShardPlanOptions& options) {
  if (ranks < 1) {
    throw UsageError({.code = Code::kBadRankCount,
                      .what = "a plan for fewer than one rank",
                      .why = concat("expected at least 1 rank, got ", ranks),
                      .fix = "plan for the number of processes that will run"});
  }
  ShardPlan plan;
  plan.ranks_ = ranks;
  plan.ties_ = ties;
  plan.units_.push_back({.name = "", .parameters = {}});
  for (const UnitSpec& unit : options.units) {
    plan.units_.push_back({.name = unit.name, .parameters = {}});
  }
  const DimOverrides overrides(options.dims, ties, table);
  for (const ParameterInfo& info : table) {
    if (ties.is_alias(info.fqn)) {
      continue;
    }
    const std::vector<std::string> aliases = ties.aliases(info.fqn);
    const std::size_t index = plan.parameters_.size();
    const std::size_t unit = common_unit(info, aliases, options.units);
    const int dim = shard_dim(info, !aliases.empty(), overrides.find(info.fqn), options.policy);
    plan.parameters_.push_back({.fqn = info.fqn,
                                .shape = info.shape,
                                .dtype = info.dtype,
                                .dim = dim,
                                .unit = unit,
                                .stored_transposed = info.stored_transposed});
    plan.units_[unit].parameters.push_back(index);
    plan.by_name_.emplace(info.fqn, index);
    for (const std::string& alias : aliases) {
      plan.by_name_.emplace(alias, index);
    }
  }
  for (const ParameterInfo& info : table) {
    if (plan.find(info.fqn) == nullptr) { // an alias whose canonical the table lacks would be dropped in silence
      throw UsageError({.code = Code::kUnknownParameter,
                        .what = "a tie's canonical name is not among the parameters",
                        .where = concat(info.fqn, " -> ", ties.canonical(info.fqn)),
                        .why = "the registry was made for another table",
                        .fix = "make the TieRegistry and the ShardPlan from one ParameterTable"});
    }
  }
  return plan;
}

const ShardedParameter* ShardPlan::find(std::string_view fqn) const {
  const auto found = by_name_.find(fqn);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

ChunkRange ShardPlan::range(const ShardedParameter& parameter, std::int64_t rank) const {
  if (parameter.dim < 0) {
    return {0, 1};
  }
  return chunk_range(parameter.shape[static_cast<std::size_t>(parameter.dim)], ranks_, rank);
}

Shape ShardPlan::local_shape(const ShardedParameter& parameter, std::int64_t rank) const {
  Shape shape = parameter.shape;
  if (parameter.dim >= 0) {
    shape[static_cast<std::size_t>(parameter.dim)] = range(parameter, rank).size;
  }
  return shape;
}

std::int64_t ShardPlan::local_numel(std::int64_t rank) const {
  std::int64_t total = 0;
  for (const ShardedParameter& parameter : parameters_) {
    total += numel(local_shape(parameter, rank));
  }
  return total;
}

std::int64_t ShardPlan::total_numel() const {
  std::int64_t total = 0;
  for (const ShardedParameter& parameter : parameters_) {
    total += numel(parameter.shape);
  }
  return total;
}

} // namespace tieshard

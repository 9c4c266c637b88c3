#include "tieshard/core/plan/shard_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::size_t kRootUnit = 0;

/// Finds the unit of a name among many by looking up its beginnings, one for each length that a prefix has.
class UnitIndex {
 public:
  /// @param units  have to live as long
  explicit UnitIndex(const std::vector<UnitSpec>& units) {
    for (std::size_t i = 0; i < units.size(); ++i) {
      units_.emplace(units[i].prefix, i + 1); // the first of equal prefixes stays
      lengths_.insert(units[i].prefix.size());
    }
  }

  /// Index into ShardPlan::units() of the unit that takes `fqn`, the first that matches: the root is 0, others follow.
  std::size_t find(std::string_view fqn) const {
    std::size_t found = kNone;
    for (const std::size_t length : lengths_) {
      if (length > fqn.size()) {
        break;
      }
      if (const auto unit = units_.find(fqn.substr(0, length)); unit != units_.end()) {
        found = std::min(found, unit->second);
      }
    }
    return found == kNone ? kRootUnit : found;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::unordered_map<std::string_view, std::size_t> units_;
  std::set<std::size_t> lengths_;
};

/// The unit of all names of a parameter; the root when they fall into several, since a unit frees what it gathered.
std::size_t common_unit(const ParameterInfo& info, const std::vector<std::string>& aliases, const UnitIndex& units) {
  const std::size_t unit = units.find(info.fqn);
  const bool together =
      std::ranges::all_of(aliases, [&](const std::string& alias) { return units.find(alias) == unit; });
  return together ? unit : kRootUnit;
}

/// The overrides, by canonical name, with dimensions counted from the front.
class DimOverrides {
 public:
  DimOverrides(const std::map<std::string, int>& dims, const TieRegistry& ties, const ParameterTable& table) {
    if (dims.empty()) {
      return;
    }
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
  const UnitIndex units(options.units);
  const DimOverrides overrides(options.dims, ties, table);
  for (const ParameterInfo& info : table) {
    if (ties.is_alias(info.fqn)) {
      continue;
    }
    const std::vector<std::string> aliases = ties.aliases(info.fqn);
    const std::size_t index = plan.parameters_.size();
    const std::size_t unit = common_unit(info, aliases, units);
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

ShardPlan ShardPlan::extended(const ParameterTable& added, ShardDimPolicy policy) const {
  ShardPlan plan = *this;
  for (const ParameterInfo& info : added) {
    if (plan.find(info.fqn) != nullptr) {
      throw UsageError({.code = Code::kUnknownParameter,
                        .what = "a plan is extended by a parameter that it has already",
                        .where = info.fqn,
                        .fix = "give new parameters only"});
    }
    std::size_t unit = kRootUnit;
    for (std::size_t index = plan.units_.size(); index-- > 1;) {
      unit = info.fqn.starts_with(plan.units_[index].name + ".") ? index : unit;
    }
    const std::size_t place = plan.parameters_.size();
    plan.parameters_.push_back({.fqn = info.fqn,
                                .shape = info.shape,
                                .dtype = info.dtype,
                                .dim = shard_dim(info, /*tied=*/false, std::nullopt, policy),
                                .unit = unit});
    plan.units_[unit].parameters.push_back(place);
    plan.by_name_.emplace(info.fqn, place);
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

std::vector<ChunkRun> ShardPlan::runs(const ShardedParameter& parameter) const {
  if (parameter.dim < 0) {
    return {{.first = 0, .count = ranks_, .offset = 0, .size = 1}};
  }
  return chunk_runs(parameter.shape[static_cast<std::size_t>(parameter.dim)], ranks_);
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

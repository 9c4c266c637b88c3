// tieshard/core/plan/shard_plan.h
//
// How each parameter lies on the ranks. Decided once, from plain data, equal on every rank.
//
// Flow:   families/parameter_table.h, ties -> [this] -> read_plan, runtime/load, runtime/fsdp, runtime/state
// Source: FSDP2's parameter groups (units) and placements; a tied weight on its last dimension only, as the write-ups
// ask.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/families/family.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/plan/shard_spec.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard {

/// Dimension that parameters are sharded on when nothing else is said.
enum class ShardDimPolicy { kLast, kFirst };

struct ShardPlanOptions {
  ShardDimPolicy policy = ShardDimPolicy::kLast;
  std::map<std::string, int> dims{}; ///< per canonical name or alias; negative counts from the end
  std::vector<UnitSpec> units{};     ///< first match wins; parameters that none takes belong to the root unit
};

/// One canonical parameter. `dim` -1: replicated (0-dim parameters).
struct ShardedParameter {
  std::string fqn;
  Shape shape; ///< whole shape
  DType dtype = DType::kF32;
  int dim = -1;
  std::size_t unit = 0;           ///< index into ShardPlan::units()
  bool stored_transposed = false; ///< the file holds the last two dimensions swapped
};

/// Parameters that are gathered and reduced together.
struct PlanUnit {
  std::string name;                    ///< fqn of the module; "" for the root
  std::vector<std::size_t> parameters; ///< indices into ShardPlan::parameters()
};

class ShardPlan {
 public:
  /// @param table  all names; aliases in it are dropped by asking `ties`
  /// @param ranks  ranks that share one copy of the model, at least 1
  /// A tied weight whose names fall into several units is co-located in the root unit.
  /// @throws UsageError tied-weight-on-vocab when a tied weight is asked onto another dimension than its last,
  ///         unknown-parameter when an override names none, bad-shard-dim, bad-rank-count
  static ShardPlan build(const ParameterTable& table,
                         const TieRegistry& ties,
                         std::int64_t ranks,
                         const ShardPlanOptions& options = {});

  /// This plan and further parameters, which are tied to nothing, after the others: each in the first unit whose module
  /// it lies in. @throws UsageError unknown-parameter for a name that the plan has already
  ShardPlan extended(const ParameterTable& added, ShardDimPolicy policy = ShardDimPolicy::kLast) const;

  /// Canonical parameters in registration order; never an alias.
  const std::vector<ShardedParameter>& parameters() const noexcept {
    return parameters_;
  }
  /// The root unit first, then the others in the order given. A unit without parameters is kept.
  const std::vector<PlanUnit>& units() const noexcept {
    return units_;
  }
  std::int64_t ranks() const noexcept {
    return ranks_;
  }
  const TieRegistry& ties() const noexcept {
    return ties_;
  }

  /// The parameter of this name or alias, or null.
  const ShardedParameter* find(std::string_view fqn) const;

  /// What `rank` holds of its sharded dimension; the whole (size 1) for a replicated one.
  ChunkRange range(const ShardedParameter& parameter, std::int64_t rank) const;

  /// The same for all ranks at once, equal neighbours together.
  std::vector<ChunkRun> runs(const ShardedParameter& parameter) const;

  /// Shape of `rank`'s part; a size may be 0.
  Shape local_shape(const ShardedParameter& parameter, std::int64_t rank) const;

  /// Elements that `rank` holds in all.
  std::int64_t local_numel(std::int64_t rank) const;

  /// Elements of all parameters, each storage once.
  std::int64_t total_numel() const;

 private:
  std::vector<ShardedParameter> parameters_;
  std::vector<PlanUnit> units_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::int64_t ranks_ = 1;
  TieRegistry ties_;
};

} // namespace tieshard

// tieshard/cli/plan_compare.h
//
// `tieshard plan --compare`: what each choice of shard dim, precision and resharding costs. And `--device-memory`:
// whether the choice fits, by how much, and what would make it fit.
//
// Flow: plan -> [this] -> core/plan/plan_choices.h, table

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/cli/console.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/core/plan/plan_choices.h"

namespace tieshard::cli {

/// What the machines have; 0: not said.
struct PlanLimits {
  std::uint64_t device_bytes = 0; ///< of a rank
  std::uint64_t bandwidth = 0;    ///< bytes a second that a rank can receive
};

/// The flags of train and plan that make the choice.
std::string flags_of(const PlanChoice& choice);

/// @param asked  the choice of this plan; its row is marked
void print_choices(const std::vector<ChoiceCost>& costs,
                   const PlanChoice& asked,
                   const PlanLimits& limits,
                   const Stream& out);
OrderedJson choices_document(const std::vector<ChoiceCost>& costs, const PlanLimits& limits);

/// Whether a peak fits, and otherwise the smallest change of flags, or the number of ranks, with which it would.
struct Fit {
  std::uint64_t limit = 0;
  std::optional<std::uint64_t> peak{};      ///< nothing: not known, then it is not said to fit
  std::string change{};                     ///< flags that would fit; empty: none, or none is needed
  std::optional<std::int64_t> more_ranks{}; ///< that would, without other flags

  bool fits() const {
    return peak && *peak <= limit;
  }
};

/// @throws UsageError what ShardPlan::build throws
Fit fit_of(const ChoiceModel& model, const PlanChoice& asked, std::uint64_t limit);

void print_fit(const Fit& fit, const Stream& out);
OrderedJson to_json(const Fit& fit);

} // namespace tieshard::cli

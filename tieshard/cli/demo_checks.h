// tieshard/cli/demo_checks.h
//
// Did the demo's training learn something, and is its export whole?
//
// Flow: demo -> [this] -> core/checkpoint, core/ties, core/plan

#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tieshard/cli/model_view.h"

namespace tieshard::cli {

/// `loss` of each line of a run's metrics.jsonl, in order.
/// @throws InputError file-not-found, json-malformed, data-malformed when a line has no number `loss`
std::vector<double> read_losses(const std::filesystem::path& metrics);

/// Means of the first and the last ten losses.
struct LossFall {
  double first = 0.0;
  double last = 0.0;

  /// True when the last is at most 0.8 x the first; never for losses that are not finite.
  bool reached() const noexcept {
    return last <= kGoal * first;
  }
  static constexpr double kGoal = 0.8;
};

/// Pre: at least ten losses.
LossFall loss_fall(const std::vector<double>& losses);

/// What is wrong with an export of `source`; empty when it has the same names, shapes and dtypes, each storage once, no
/// alias, the same ties, and every parameter's bytes.
/// @throws InputError whatever resolve_model throws
std::vector<std::string> export_faults(const ResolvedModel& source, const std::filesystem::path& exported);

} // namespace tieshard::cli

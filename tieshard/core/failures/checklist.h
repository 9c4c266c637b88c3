// tieshard/core/failures/checklist.h
//
// The steps of a failure's checklist, walked as far as a log and a checkpoint go.
//
// Flow: recognise, core/doctor/doctor.h, core/ties/resolved_model.h -> [this] -> cli/doctor_log

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/doctor/doctor.h"
#include "tieshard/core/failures/recognise.h"

namespace tieshard {

/// What is known of a step.
enum class StepState {
  kFound,    ///< it holds, and is a part of the failure
  kChecked,  ///< it was looked at, and is in order
  kNeedsYou, ///< neither the log nor a checkpoint says it
};

/// "found", "checked", "needs you".
std::string_view id(StepState state);

struct WalkedStep {
  StepState state = StepState::kNeedsYou;
  std::string text{};
  std::string detail{}; ///< what was seen; may be empty
};

/// A checkpoint that was looked at beside the log.
struct LookedAt {
  const DoctorReport& report;
  std::vector<std::string> stored{}; ///< names that the files hold
};

/// @param checkpoint  nothing: steps that it would answer need the reader
std::vector<WalkedStep> walk(const Recognised& found, const std::optional<LookedAt>& checkpoint);

/// The failure as a finding of level error.
Diagnostic finding_of(const Recognised& found);

/// The note unknown-failure, with what was recognised.
Diagnostic unknown_finding(const LogFacts& facts, const LogDiagnosis& diagnosis);

} // namespace tieshard

#include "tieshard/core/failures/tie_evidence.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace tieshard {

const TieGroup* group_of(const DoctorReport& report, const std::string& name) {
  for (const TieGroup& group : report.ties) {
    const bool alias = std::ranges::any_of(group.aliases, [&](const TieAlias& one) { return one.name == name; });
    if (group.canonical == name || alias) {
      return &group;
    }
  }
  return nullptr;
}

const Diagnostic* broken_tie(const DoctorReport& report, const std::string& name) {
  constexpr std::array kCodes = {Code::kTieConflict, Code::kTieShapeMismatch, Code::kTieSourceAmbiguous};
  const auto found = std::ranges::find_if(report.findings, [&](const Diagnostic& finding) {
    const bool names_it = finding.where.find(name) != std::string::npos || finding.why.find(name) != std::string::npos;
    return std::ranges::find(kCodes, finding.code) != kCodes.end() && names_it;
  });
  return found == report.findings.end() ? nullptr : &*found;
}

void correct_by(const DoctorReport& report, LogDiagnosis& diagnosis) {
  const auto other = std::ranges::find_if(
      known_failures(), [](const Failure& failure) { return std::string_view(failure.id) == kNameNotFound; });
  for (Recognised& found : diagnosis.failures) {
    const std::string& name = found.match.parameter;
    const bool as_tied = std::string_view(found.failure->id) == "tied-name-missing" && !name.empty();
    if (as_tied && group_of(report, name) == nullptr && broken_tie(report, name) == nullptr) {
      found.failure = &*other;
    }
  }
}

} // namespace tieshard

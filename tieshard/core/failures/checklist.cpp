#include "tieshard/core/failures/checklist.h"

#include <algorithm>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/failures/tie_evidence.h"

namespace tieshard {
namespace {

WalkedStep needs_you(const CheckStep& step) {
  const bool with_checkpoint = step.by != CheckBy::kYou;
  return {.state = StepState::kNeedsYou,
          .text = step.text,
          .detail = with_checkpoint ? "give the checkpoint's directory, and it is checked" : ""};
}

WalkedStep tied(const CheckStep& step, const std::string& parameter, const DoctorReport& report) {
  const TieGroup* group =
      parameter.empty() ? (report.ties.empty() ? nullptr : &report.ties.front()) : group_of(report, parameter);
  if (group == nullptr) {
    if (const Diagnostic* broken = broken_tie(report, parameter)) {
      return {StepState::kFound, step.text, concat(broken->what, " [", id(broken->code), "]: ", broken->why)};
    }
    return {StepState::kChecked,
            step.text,
            concat(parameter.empty() ? "no two names are" : parameter + " is not", " tied in this checkpoint")};
  }
  return {StepState::kFound,
          step.text,
          concat(group->aliases.front().name,
                 " = ",
                 group->canonical,
                 " (",
                 group->aliases.front().reasons.front().text,
                 ")")};
}

WalkedStep stored(const CheckStep& step, const std::string& parameter, const LookedAt& checkpoint) {
  const TieGroup* group = group_of(checkpoint.report, parameter);
  std::vector<std::string> names{parameter};
  if (group != nullptr) {
    names = {group->canonical};
    for (const TieAlias& alias : group->aliases) {
      names.push_back(alias.name);
    }
  }
  if (parameter.empty() && group == nullptr) {
    return {StepState::kChecked, step.text, concat(checkpoint.stored.size(), " names are stored")};
  }
  std::string detail;
  bool all = true;
  for (const std::string& name : names) {
    const bool is_stored = std::ranges::find(checkpoint.stored, name) != checkpoint.stored.end();
    all = all && is_stored;
    detail += concat(detail.empty() ? "" : ", ", format_name(name), is_stored ? " is stored" : " is not stored");
  }
  return {all && group == nullptr ? StepState::kChecked : StepState::kFound, step.text, detail};
}

/// Of the diagnosis a finding of these codes, or of level error.
WalkedStep diagnosed(const CheckStep& step,
                     const DoctorReport& report,
                     const std::vector<Code>& codes,
                     const char* otherwise) {
  for (const Diagnostic& finding : report.findings) {
    const bool asked =
        codes.empty() ? finding.level == Level::kError : std::ranges::find(codes, finding.code) != codes.end();
    if (asked) {
      return {StepState::kFound, step.text, concat(finding.what, " [", id(finding.code), "]: ", finding.why)};
    }
  }
  return {StepState::kChecked, step.text, otherwise};
}

WalkedStep walk_step(const CheckStep& step, const Recognised& found, const std::optional<LookedAt>& checkpoint) {
  if (step.by == CheckBy::kLog) {
    return {StepState::kFound, step.text, concat("line ", found.exception->line)};
  }
  if (step.by == CheckBy::kYou || !checkpoint) {
    return needs_you(step);
  }
  switch (step.by) {
    case CheckBy::kTied:
      return tied(step, found.match.parameter, checkpoint->report);
    case CheckBy::kStored:
      return stored(step, found.match.parameter, *checkpoint);
    case CheckBy::kConflict:
      return diagnosed(
          step, checkpoint->report, {Code::kTieConflict, Code::kTieSourceAmbiguous}, "no two stored copies differ");
    case CheckBy::kHiddenDim:
      return diagnosed(step, checkpoint->report, {Code::kTiedWeightOnVocab}, "tieshard's plan cuts them so");
    default:
      return diagnosed(step, checkpoint->report, {}, "the diagnosis of the checkpoint finds no error");
  }
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    text += concat(text.empty() ? (ranks.size() == 1 ? "rank " : "ranks ") : ", ", rank);
  }
  return text;
}

} // namespace

std::string_view id(StepState state) {
  return state == StepState::kFound ? "found" : state == StepState::kChecked ? "checked" : "needs you";
}

std::vector<WalkedStep> walk(const Recognised& found, const std::optional<LookedAt>& checkpoint) {
  std::vector<WalkedStep> steps;
  for (const CheckStep& step : found.failure->steps) {
    steps.push_back(walk_step(step, found, checkpoint));
  }
  return steps;
}

Diagnostic finding_of(const Recognised& found) {
  const LogException& seen = *found.exception;
  std::string where = concat("phase ", id(found.phase()));
  if (!found.match.parameter.empty()) {
    where += concat(", ", found.match.parameter);
  }
  if (!found.ranks.empty()) {
    where += concat(", ", ranks_text(found.ranks));
  }
  const std::string place = seen.place();
  return {.level = Level::kError,
          .code = Code::kKnownFailure,
          .what = concat(found.failure->id, ": ", found.failure->what),
          .where = concat(where, ", line ", seen.line, place.empty() ? "" : concat(" (", place, ")")),
          .why = concat(found.failure->cause,
                        "; got ",
                        seen.type,
                        seen.message.empty() ? "" : concat(": ", format_name(seen.message))),
          .fix = concat(found.failure->fix_there, ". With tieshard: ", found.failure->fix_here)};
}

Diagnostic unknown_finding(const LogFacts& facts, const LogDiagnosis& diagnosis) {
  std::string seen =
      concat(format_count(static_cast<std::int64_t>(facts.lines)), facts.lines == 1 ? " line" : " lines");
  if (!facts.frameworks.empty()) {
    std::string names;
    for (const std::string& name : facts.frameworks) {
      names += concat(names.empty() ? "" : ", ", name);
    }
    seen += concat(", of ", names);
  }
  if (!facts.ranks.empty()) {
    seen += concat(", ", facts.ranks.size(), facts.ranks.size() == 1 ? " rank" : " ranks");
  }
  if (facts.exceptions.empty() && facts.tracebacks_cut > 0) {
    seen += concat(", ",
                   facts.tracebacks_cut,
                   facts.tracebacks_cut == 1 ? " traceback that ends" : " tracebacks that end",
                   " without an exception");
  } else {
    seen += concat(", ", facts.exceptions.size(), facts.exceptions.size() == 1 ? " exception" : " exceptions");
  }
  if (diagnosis.unknown != nullptr) {
    const std::string place = diagnosis.unknown->place();
    seen += concat("; the last is ",
                   diagnosis.unknown->type,
                   ": ",
                   format_name(diagnosis.unknown->message),
                   place.empty() ? "" : concat(" (", place, ")"));
  }
  if (!facts.telling.empty()) {
    seen += concat("; and: ", format_name(facts.telling.back()));
  }
  return {
      .level = Level::kNote,
      .code = Code::kUnknownFailure,
      .what = "the log shows no failure that is known",
      .where = diagnosis.unknown == nullptr ? "the log" : concat("line ", diagnosis.unknown->line),
      .why = concat("expected one of docs/failures.md, got ", seen),
      .fix =
          "give the whole log with the lines above the exception; tieshard doctor DIR says what the checkpoint shows"};
}

} // namespace tieshard

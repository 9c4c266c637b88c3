#include "tieshard/cli/doctor_log.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <system_error>

#include "tieshard/cli/accelerate_config.h"
#include "tieshard/cli/doctor_text.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/failures/checklist.h"
#include "tieshard/core/failures/tie_evidence.h"

namespace tieshard::cli {
namespace {

LogFacts read_file(const std::string& log) {
  if (log == "-") {
    return read_log(std::cin);
  }
  std::error_code ignored;
  std::ifstream file(log, std::ios::binary);
  if (!file || std::filesystem::is_directory(log, ignored)) {
    const bool absent = !std::filesystem::exists(log, ignored);
    const Diagnostic said{
        .code = absent ? Code::kFileNotFound : Code::kFileUnreadable,
        .what = absent ? "the log is not there" : "the log cannot be read",
        .where = log,
        .why = concat("expected a file, got ",
                      std::filesystem::is_directory(log, ignored) ? "a directory" : std::strerror(errno)),
        .fix = "pass the file that the trainer's output was written to, or - for standard input"};
    if (absent) {
      throw InputError(said);
    }
    throw PeerError(said);
  }
  return read_log(file);
}

/// @throws PeerError file-unreadable where there is no line, or what is there is no text
LogFacts facts_of(const std::string& log) {
  LogFacts facts = read_file(log);
  if (facts.lines > 0 && facts.binary.empty()) {
    return facts;
  }
  const std::string fix = facts.binary.empty()            ? "pass the file that the trainer's output was written to"
                          : facts.binary == "gzip"        ? "gzip -dc FILE | tieshard doctor --log -"
                          : facts.binary == "UTF-16 text" ? "iconv -f UTF-16 -t UTF-8 FILE | tieshard doctor --log -"
                                                          : "unpack it, or pass the log as text";
  throw PeerError({.code = Code::kFileUnreadable,
                   .what = facts.binary.empty() ? "the log is empty" : "the log is not text",
                   .where = log == "-" ? "standard input" : log,
                   .why = concat("expected lines of text, got ", facts.binary.empty() ? "nothing" : facts.binary),
                   .fix = fix});
}

/// The checkpoint beside the log, as far as it opens.
struct Beside {
  DoctorReport report{};
  std::optional<ResolvedModel> model{};
  std::vector<std::string> stored{};
};

std::optional<Beside> look_beside(const LogVerbOptions& options) {
  if (options.directory.empty()) {
    return std::nullopt;
  }
  Beside beside{.report = diagnose(options.directory, options.doctor)};
  try {
    beside.model = resolve_model(options.directory, options.doctor.resolve);
    for (const StoredTensor& tensor : beside.model->checkpoint.tensors()) {
      beside.stored.push_back(tensor.name);
    }
  } catch (const InputError&) { // its reason is among the report's findings
    beside.model.reset();
  }
  return beside;
}

void print_failure(const Recognised& found, const std::vector<WalkedStep>& steps, const Stream& out) {
  const Diagnostic finding = finding_of(found);
  out.text << out.paint(Tone::kError, "failure") << "  " << finding.what << " [" << id(finding.code) << "]\n"
           << "  where     " << finding.where << "\n"
           << "  seen      " << found.exception->type << (found.exception->message.empty() ? "" : ": ")
           << format_name(found.exception->message) << "\n"
           << "  cause     " << found.failure->cause << "\n";
  for (const WalkedStep& step : steps) {
    const Tone tone = step.state == StepState::kFound     ? Tone::kWarning
                      : step.state == StepState::kChecked ? Tone::kGood
                                                          : Tone::kNote;
    out.text << "  " << out.paint(tone, concat("[", id(step.state), "]")) << "  " << step.text << "\n";
    if (!step.detail.empty()) {
      out.text << "            " << step.detail << "\n";
    }
  }
  out.text << "  fix       " << found.failure->fix_there << "\n"
           << "  tieshard  " << found.failure->fix_here << "\n\n";
}

OrderedJson to_json(const Recognised& found, const std::vector<WalkedStep>& steps) {
  OrderedJson list = OrderedJson::array();
  for (const WalkedStep& step : steps) {
    list.push_back({{"state", id(step.state)}, {"text", step.text}, {"detail", step.detail}});
  }
  return {{"failure", found.failure->id},
          {"phase", id(found.phase())},
          {"parameter", found.match.parameter.empty() ? OrderedJson() : OrderedJson(found.match.parameter)},
          {"ranks", found.ranks},
          {"line", found.exception->line},
          {"exception", found.exception->type},
          {"message", found.exception->message},
          {"cause", found.failure->cause},
          {"checklist", list},
          {"fix", found.failure->fix_there},
          {"fix_with_tieshard", found.failure->fix_here}};
}

bool fails(const std::vector<Diagnostic>& findings, bool on_warning) {
  return std::ranges::any_of(findings, [&](const Diagnostic& finding) {
    return finding.level == Level::kError || (on_warning && finding.level == Level::kWarning);
  });
}

/// Everything that is found, in the order in which it is shown.
struct Found {
  std::optional<LogFacts> facts{};
  LogDiagnosis log{};
  std::vector<Diagnostic> findings{}; ///< of log (unknown-failure), configuration and checkpoint
};

Found find_all(const LogVerbOptions& options, const std::optional<Beside>& beside) {
  Found found;
  if (!options.log.empty()) {
    found.facts = facts_of(options.log);
    found.log = recognise(*found.facts);
    if (beside && !beside->stored.empty()) {
      correct_by(beside->report, found.log);
    }
    if (found.log.failures.empty() || found.log.unknown != nullptr) {
      found.findings.push_back(unknown_finding(*found.facts, found.log));
    }
  }
  if (!options.accelerate.empty()) {
    const AccelerateConfig config = read_accelerate_config(options.accelerate);
    const ResolvedModel* model = beside && beside->model ? &*beside->model : nullptr;
    const std::vector<Diagnostic> more = check_accelerate_config(config, model);
    found.findings.insert(found.findings.end(), more.begin(), more.end());
  }
  if (beside) {
    found.findings.insert(found.findings.end(), beside->report.findings.begin(), beside->report.findings.end());
  }
  return found;
}

} // namespace

int run_doctor_log(const LogVerbOptions& options, const Console& console) {
  const std::optional<Beside> beside = look_beside(options);
  const Found found = find_all(options, beside);
  std::optional<LookedAt> looked_at;
  if (beside) {
    looked_at.emplace(LookedAt{.report = beside->report, .stored = beside->stored});
  }
  OrderedJson failures = OrderedJson::array();
  for (const Recognised& one : found.log.failures) {
    const std::vector<WalkedStep> steps = walk(one, looked_at);
    options.json ? failures.push_back(to_json(one, steps)) : print_failure(one, steps, console.out);
  }
  if (options.json) {
    print_json(console.out, {{"failures", failures}, {"findings", to_json(found.findings)}});
  } else {
    print_findings(console.out, found.findings);
    if (found.log.failures.empty() && found.findings.empty()) {
      console.out.text << "nothing to say\n";
    }
  }
  return !found.log.failures.empty() || fails(found.findings, options.fail_on_warning) ? kExitInput : kExitSuccess;
}

} // namespace tieshard::cli

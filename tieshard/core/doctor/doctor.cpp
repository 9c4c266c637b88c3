#include "tieshard/core/doctor/doctor.h"

#include <algorithm>

#include "tieshard/core/doctor/file_check.h"
#include "tieshard/core/doctor/finding_list.h"
#include "tieshard/core/doctor/load_check.h"
#include "tieshard/core/doctor/room_check.h"
#include "tieshard/core/doctor/saved_check.h"
#include "tieshard/core/doctor/value_check.h"
#include "tieshard/core/state/saved_model.h"

namespace tieshard {
namespace {

void describe(const Checkpoint& checkpoint, DoctorReport& report) {
  const HfConfig& config = checkpoint.config();
  report.architecture = config.architecture().empty() ? config.model_type() : config.architecture();
  if (const Family* const family = find_family(config)) {
    report.family = family->name();
  }
  report.files = checkpoint.files().size();
  report.tensors = checkpoint.tensors().size();
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    report.stored_bytes += tensor.bytes;
  }
}

/// All that are stored, as they are: where it is not known which of them a load would read.
std::vector<CheckedTensor> all_tensors(const Checkpoint& checkpoint) {
  std::vector<CheckedTensor> tensors;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    tensors.push_back({.stored = &tensor,
                       .read_as = tensor.dtype,
                       .loaded_as = is_wide_float(tensor.dtype) ? tensor.dtype : DType::kF32});
  }
  return tensors;
}

ValueCheckCount check_values_of(const Checkpoint& checkpoint,
                                const std::vector<CheckedTensor>& tensors,
                                const DoctorOptions& options,
                                FindingList& findings) {
  if (!options.check_values) {
    return {};
  }
  const std::optional<std::uint64_t> budget = options.deep ? std::nullopt : std::optional(kValueBudget);
  return check_values(checkpoint,
                      tensors.empty() ? all_tensors(checkpoint) : tensors,
                      {.threads = options.threads, .budget = budget},
                      findings);
}

Need need_of(const DoctorReport& report, const LoadCheck& load, const DoctorOptions& options) {
  constexpr std::uint64_t kFloat = 4;
  return {.ranks = options.ranks,
          .rank_bytes = load.peak_bytes,
          .export_bytes = report.stored_bytes,
          .save_bytes = 3 * kFloat * static_cast<std::uint64_t>(load.parameters)};
}

/// After resolve_model has refused: what else is wrong with the files, or else with the values in them.
void check_unresolved(const std::filesystem::path& directory,
                      const DoctorOptions& options,
                      DoctorReport& report,
                      FindingList& findings) {
  std::optional<Checkpoint> checkpoint;
  if (!findings.collect([&] { checkpoint = Checkpoint::open(directory, options.resolve.limits); })) {
    check_config(directory, findings);
    check_weight_files(directory, options.resolve.limits, findings);
    return;
  }
  describe(*checkpoint, report);
  findings.add(checkpoint->findings());
  report.values = check_values_of(*checkpoint, {}, options, findings);
}

} // namespace

std::string_view id(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kRefuse:
      return "refuse";
  }
  return "unknown";
}

Verdict DoctorReport::verdict() const {
  Verdict verdict = Verdict::kOk;
  for (const Diagnostic& finding : findings) {
    if (finding.level == Level::kError) {
      return Verdict::kRefuse;
    }
    verdict = finding.level == Level::kWarning ? Verdict::kWarn : verdict;
  }
  return verdict;
}

bool DoctorReport::unreadable() const {
  std::error_code ignored;
  return std::ranges::any_of(findings, [&](const Diagnostic& finding) {
    return finding.level == Level::kError && finding.code == Code::kFileUnreadable &&
           !std::filesystem::is_directory(finding.where, ignored); // that has the name of a file: it is no file
  });
}

DoctorReport diagnose(const std::filesystem::path& directory, const DoctorOptions& options) {
  DoctorReport report;
  FindingList findings;
  std::optional<ResolvedModel> model;
  if (is_training_checkpoint(directory)) {
    check_saved(directory, options, report, findings);
  } else if (findings.collect([&] { model = resolve_model(directory, options.resolve); })) {
    describe(model->checkpoint, report);
    findings.add(model->findings);
    report.ties = model->ties.groups();
    LoadCheck load = check_load(*model, options, findings);
    report.parameters = load.parameters;
    if (!load.ranks.empty()) {
      check_room(directory, need_of(report, load, options), options.room.value_or(room_at(directory)), findings);
    }
    report.ranks = std::move(load.ranks);
    report.units = std::move(load.units);
    report.load_bytes = load.peak_bytes;
    report.values = check_values_of(model->checkpoint, load.values, options, findings);
  } else {
    check_unresolved(directory, options, report, findings);
  }
  report.findings = findings.sorted();
  return report;
}

} // namespace tieshard

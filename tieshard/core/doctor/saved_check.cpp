#include "tieshard/core/doctor/saved_check.h"

#include <optional>

#include "tieshard/core/doctor/load_check.h"
#include "tieshard/core/state/saved_model.h"

namespace tieshard {
namespace {

/// Of the checkpoint's parameters; what a rank reads of them is what it holds.
void plan_ranks(const SavedModel& model, const DoctorOptions& options, DoctorReport& report, FindingList& findings) {
  std::optional<ShardPlan> plan;
  findings.collect([&] {
    plan = ShardPlan::build(model.table,
                            model.ties,
                            options.ranks,
                            {.policy = options.policy, .dims = options.dims, .units = model.units()});
  });
  if (!plan) {
    return;
  }
  report.parameters = plan->total_numel();
  report.units = units_of(*plan);
  WeightSources none;
  none.of_parameter.resize(plan->parameters().size());
  report.ranks = rank_bytes(*plan, none);
  for (RankBytes& rank : report.ranks) {
    rank.read_bytes = rank.memory_bytes;
    rank.init_bytes = 0;
  }
  report.load_bytes = report.ranks.empty() ? 0 : report.ranks.front().memory_bytes;
}

} // namespace

void check_saved(const std::filesystem::path& path,
                 const DoctorOptions& options,
                 DoctorReport& report,
                 FindingList& findings) {
  std::optional<SavedModel> model;
  if (!findings.collect([&] { model = open_saved_model(path, options.deep ? Verify::kHashes : Verify::kSizes); })) {
    return;
  }
  findings.add(model->found.findings);
  const HfConfig& config = model->config;
  report.architecture = config.architecture().empty() ? config.model_type() : config.architecture();
  report.family = model->family == nullptr ? "" : model->family->name();
  report.ties = model->groups;
  report.tensors = model->found.manifest.parameters.size();
  for (const FileRecord& file : model->found.manifest.files) {
    const bool weights = file.name.ends_with(".safetensors");
    report.files += weights ? 1 : 0;
    report.stored_bytes += weights ? file.bytes : 0;
  }
  plan_ranks(*model, options, report, findings);
}

} // namespace tieshard

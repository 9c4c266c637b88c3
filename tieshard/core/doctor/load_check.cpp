#include "tieshard/core/doctor/load_check.h"

#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/families/expert_names.h"
#include "tieshard/core/io/local_shards.h"
#include "tieshard/core/plan/memory_dtype.h"

namespace tieshard {
namespace {

/// The plan of `options`; where a flag asks for what cannot be, that is a finding and the plan is one without it.
std::optional<ShardPlan> make_plan(const ResolvedModel& model, const DoctorOptions& options, FindingList& findings) {
  ParameterTable table = model.table;
  set_memory_dtypes(table, model.checkpoint, model.ties, options.param_dtype);
  ShardPlanOptions plan_options{.policy = options.policy, .dims = options.dims, .units = model.units()};
  std::optional<ShardPlan> plan;
  const auto build = [&] { plan = ShardPlan::build(table, model.ties, options.ranks, plan_options); };
  if (!findings.collect(build)) {
    plan_options.dims.clear();
    FindingList same_again;
    same_again.collect(build);
  }
  return plan;
}

/// What the load would read. Quantised values and their scales are looked at one by one: their products are finite when
/// both are, but for an overflow in a narrow dtype.
std::vector<CheckedTensor> values_of(const ShardPlan& plan, const WeightSources& sources) {
  std::vector<CheckedTensor> values;
  for (std::size_t i = 0; i < sources.of_parameter.size(); ++i) {
    const WeightSource& source = sources.of_parameter[i];
    if (source.values == nullptr) {
      continue; // initialised
    }
    const bool whole = is_wide_float(source.values->dtype);
    values.push_back({.stored = source.values,
                      .read_as = source.values->dtype,
                      .loaded_as = whole ? plan.parameters()[i].dtype : DType::kF32});
    if (source.scales != nullptr) {
      const DType stored = source.scales->dtype;
      values.push_back({.stored = source.scales,
                        .read_as = stored == DType::kU8 ? DType::kF8E8M0 : stored,
                        .loaded_as = DType::kF32,
                        .first = true});
    }
  }
  return values;
}

} // namespace

std::vector<UnitBytes> units_of(const ShardPlan& plan) {
  std::vector<UnitBytes> units;
  for (const PlanUnit& unit : plan.units()) {
    UnitBytes bytes{.name = unit.name};
    for (const std::size_t i : unit.parameters) {
      const ShardedParameter& parameter = plan.parameters()[i];
      const auto whole =
          static_cast<std::uint64_t>(numel(parameter.shape)) * static_cast<std::uint64_t>(bits(parameter.dtype)) / 8;
      bytes.bytes += whole;
      bytes.expert_bytes += is_expert_weight(parameter.fqn) ? whole : 0;
    }
    units.push_back(std::move(bytes));
  }
  return units;
}

LoadCheck check_load(const ResolvedModel& model, const DoctorOptions& options, FindingList& findings) {
  LoadCheck result;
  const std::optional<ShardPlan> plan = make_plan(model, options, findings);
  if (!plan) {
    return result;
  }
  result.parameters = plan->total_numel();
  result.units = units_of(*plan);
  WeightSources sources;
  std::vector<Diagnostic> offences;
  const auto look = [&] { offences = find_weight_offences(model.checkpoint, *plan, options.sources); };
  if (!findings.collect(look) || !offences.empty()) {
    findings.add(offences);
    return result;
  }
  if (!findings.collect([&] { sources = find_weight_sources(model.checkpoint, *plan, options.sources); })) {
    return result;
  }
  findings.add(sources.findings);
  result.values = values_of(*plan, sources);
  result.ranks = rank_bytes(*plan, sources);
  const LocalShardOptions load{.read_buffer = options.read_buffer, .host_ram = options.host_ram};
  result.peak_bytes = predicted_load_bytes(*plan, 0, load);
  findings.collect([&] { require_room(*plan, 0, load); });
  return result;
}

} // namespace tieshard

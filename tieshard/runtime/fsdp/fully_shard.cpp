#include "tieshard/runtime/fsdp/fully_shard.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {
namespace {

bool inside(const std::string& fqn, const std::string& unit) {
  return unit.empty() || fqn.starts_with(unit + ".");
}

/// Which unit owns a parameter: the longest name that all names of the parameter lie in; tied names of different units
/// meet in the root. Returns units.size() when no unit has it.
std::size_t owner(const std::vector<std::string>& names, const std::vector<UnitModule>& units) {
  std::size_t best = units.size();
  for (std::size_t index = 0; index < units.size(); ++index) {
    const bool all = std::ranges::all_of(names, [&](const std::string& fqn) { return inside(fqn, units[index].name); });
    if (all && (best == units.size() || units[index].name.size() > units[best].name.size())) {
      best = index;
    }
  }
  return best;
}

void require_new(const std::vector<UnitModule>& units) {
  std::unordered_set<const torch::nn::Module*> seen;
  for (const UnitModule& unit : units) {
    if (unit.module == nullptr || !seen.insert(unit.module).second) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "a unit is empty or given twice",
                        .where = unit.name,
                        .fix = "give each module once"});
    }
  }
  if (units.empty()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "fully_shard was given no unit",
                      .fix = "give the root module first, then the modules inside it that are to be units"});
  }
}

std::unordered_map<std::string, at::Tensor> by_name(const torch::nn::Module& module) {
  std::unordered_map<std::string, at::Tensor> tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  return tensors;
}

} // namespace

std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const std::vector<UnitModule>& units,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options) {
  require_new(units);
  if (plan.ranks() != mesh.size()) {
    throw UsageError({.code = Code::kBadRankCount,
                      .what = "the plan is for another number of ranks than the mesh has",
                      .where = mesh.where(),
                      .why = concat("expected ", mesh.size(), ", got ", plan.ranks()),
                      .fix = "build the plan with ShardPlan::build(table, ties, mesh.size())"});
  }
  validate_shared_object(module, plan.ties());
  const auto tensors = by_name(module);
  std::vector<std::vector<FsdpParam>> owned(units.size());
  for (const ShardedParameter& spec : plan.parameters()) {
    std::vector<std::string> names = plan.ties().aliases(spec.fqn);
    names.insert(names.begin(), spec.fqn);
    const std::size_t unit = owner(names, units);
    if (unit == units.size()) {
      continue;
    }
    const auto found = tensors.find(spec.fqn);
    if (found == tensors.end()) {
      throw UsageError({.code = Code::kUnknownParameter,
                        .what = "the plan has a parameter that the module does not have",
                        .where = spec.fqn,
                        .fix = "build the plan from parameter_table(module)"});
    }
    const at::ScalarType compute = options.mp_policy.param_dtype.value_or(found->second.scalar_type());
    owned[unit].emplace_back(plan, spec, found->second, mesh.rank(), compute);
  }
  std::vector<std::unique_ptr<FsdpParamGroup>> groups;
  std::unordered_map<const torch::nn::Module*, FsdpParamGroup*> group_of;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    groups.push_back(std::make_unique<FsdpParamGroup>(units[unit].name, std::move(owned[unit]), mesh, options));
    group_of.emplace(units[unit].module, groups.back().get());
  }
  validate_shared_object(module, plan.ties());
  return std::make_shared<FsdpState>(module, mesh, plan, std::move(groups), std::move(group_of), options);
}

std::shared_ptr<FsdpState> fully_shard(CausalLm& model,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options) {
  if (sharded_state(model) != nullptr) {
    throw UsageError({.code = Code::kAlreadySharded,
                      .what = "fully_shard has been applied before",
                      .where = mesh.where(),
                      .fix = "call it once; sharded_state(model) gives the state"});
  }
  std::shared_ptr<FsdpState> state = fully_shard(model, model.units(), plan, mesh, options);
  model.set_unit_runner(state);
  return state;
}

std::shared_ptr<FsdpState> sharded_state(const CausalLm& model) {
  return std::dynamic_pointer_cast<FsdpState>(model.unit_runner());
}

} // namespace tieshard

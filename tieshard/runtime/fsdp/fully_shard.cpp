#include "tieshard/runtime/fsdp/fully_shard.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/sharded_mark.h"
#include "tieshard/runtime/fsdp/unit_ownership.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {
namespace {

void require_new(const std::vector<UnitModule>& units) {
  std::unordered_set<const torch::nn::Module*> seen;
  for (const UnitModule& unit : units) {
    bool fresh = unit.module != nullptr && seen.insert(unit.module).second;
    for (const torch::nn::Module* other : unit.with) {
      fresh = fresh && other != nullptr && seen.insert(other).second;
    }
    if (!fresh) {
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

[[noreturn]] void refuse_sharded(std::string where) {
  throw UsageError({.code = Code::kAlreadySharded,
                    .what = "fully_shard has been applied before",
                    .where = std::move(where),
                    .fix = "call it once, with all units; sharded_state(model) gives the state of one of our models"});
}

using TensorsByName = std::unordered_map<std::string, at::Tensor>;

TensorsByName by_name(const torch::nn::Module& module) {
  TensorsByName tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  return tensors;
}

/// Canonical names of what the caller wants left alone.
std::unordered_set<std::string> ignored_names(const torch::nn::Module& module,
                                              const ShardPlan& plan,
                                              const FullyShardOptions& options) {
  const auto refuse = [](std::string where) {
    throw UsageError({.code = Code::kUnknownParameter,
                      .what = "a parameter is to be ignored that the module does not have",
                      .where = std::move(where),
                      .fix = "give the parameter's full dotted name, or the module's own tensor"});
  };
  std::unordered_set<std::string> names;
  for (const std::string& fqn : options.ignored) {
    const ShardedParameter* found = plan.find(fqn);
    found != nullptr ? void(names.insert(found->fqn)) : refuse(fqn);
  }
  std::unordered_map<const c10::TensorImpl*, std::string> name_of;
  for (const NamedTensor& named : unique_parameters(module)) {
    name_of.emplace(named.tensor.unsafeGetTensorImpl(), named.fqn);
  }
  for (const at::Tensor& tensor : options.ignored_tensors) {
    const auto found = name_of.find(tensor.unsafeGetTensorImpl());
    if (found == name_of.end()) {
      refuse(concat("(unknown), shape ", to_string(tensor.sizes().vec())));
    }
    names.insert(plan.ties().canonical(found->second));
  }
  return names;
}

/// What holds for one unit.
FullyShardOptions options_of(const std::string& unit, bool is_root, FullyShardOptions options) {
  const auto special = options.per_unit.find(unit);
  if (special != options.per_unit.end() && special->second.mp_policy) {
    options.mp_policy = *special->second.mp_policy;
  } else if (!is_root) {
    options.mp_policy.output_dtype.reset();
  }
  if (special != options.per_unit.end() && special->second.reshard_after_forward) {
    options.reshard_after_forward = *special->second.reshard_after_forward;
  }
  if (special != options.per_unit.end() && special->second.activation_checkpointing) {
    options.activation_checkpointing = *special->second.activation_checkpointing;
  }
  if (is_root) {
    options.reshard_after_forward = false;
    options.activation_checkpointing = false;
  }
  return options;
}

void require_units(const std::vector<UnitModule>& units, const FullyShardOptions& options) {
  for (const auto& [name, special] : options.per_unit) {
    if (std::ranges::find(units, name, &UnitModule::name) == units.end()) {
      throw UsageError({.code = Code::kUnknownUnit,
                        .what = "a unit is asked for that the module does not have",
                        .where = concat("per_unit, \"", name, "\""),
                        .fix = "write the name of one of the units (FsdpState::groups() lists them)"});
    }
  }
}

void require_device(const std::string& fqn, const at::Tensor& parameter, const DeviceMesh& mesh) {
  if (mesh.size() > 1 && !parameter.is_meta() && parameter.device() != mesh.device()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a module lies on another device than its mesh",
                      .where = concat(mesh.where(), ", ", fqn),
                      .why = concat("expected ", mesh.device().str(), ", got ", parameter.device().str()),
                      .fix = "call module.to(mesh.device()) before fully_shard(), or load_shards(), which puts the "
                             "parameters there"});
  }
}

/// The parameters of each unit, and those of none.
struct Shared {
  std::vector<std::vector<FsdpParam>> owned;
  std::vector<std::string> ignored;
  std::vector<std::string> outside;
};

Shared share_out(const torch::nn::Module& module,
                 const std::vector<UnitModule>& units,
                 const ShardPlan& plan,
                 const DeviceMesh& mesh,
                 const FullyShardOptions& options) {
  const TensorsByName tensors = by_name(module);
  const UnitOwnership ownership(module, units);
  const std::unordered_set<std::string> ignored = ignored_names(module, plan, options);
  Shared shared;
  shared.owned.resize(units.size());
  for (const ShardedParameter& spec : plan.parameters()) {
    std::vector<std::string> names = plan.ties().aliases(spec.fqn);
    names.insert(names.begin(), spec.fqn);
    const std::optional<std::size_t> unit = ownership.owner(names);
    if (ignored.contains(spec.fqn) || !unit) {
      (unit ? shared.ignored : shared.outside).push_back(spec.fqn);
      continue;
    }
    const auto found = tensors.find(spec.fqn);
    if (found == tensors.end()) {
      throw UsageError({.code = Code::kUnknownParameter,
                        .what = "the plan has a parameter that the module does not have",
                        .where = spec.fqn,
                        .fix = "build the plan from parameter_table(module)"});
    }
    require_device(spec.fqn, found->second, mesh);
    const FullyShardOptions here = options_of(units[*unit].name, *unit == 0, options);
    const at::ScalarType compute = here.mp_policy.param_dtype.value_or(found->second.scalar_type());
    shared.owned[*unit].emplace_back(
        plan, spec, found->second, mesh.axis("dp_shard").rank(), compute, here.offload_policy);
    mark_sharded(found->second);
  }
  return shared;
}

/// The connections that integer values of reshard_after_forward need, each made once.
class NeighbourMeshes {
 public:
  explicit NeighbourMeshes(const DeviceMesh& mesh) : mesh_(mesh.axis("dp_shard")) {}

  /// Turns an integer that means true or false into that. @returns the neighbours for any other integer
  std::optional<DeviceMesh> resolve(ReshardAfterForward& asked) {
    if (std::holds_alternative<bool>(asked)) {
      return std::nullopt;
    }
    const std::int64_t count = std::get<std::int64_t>(asked);
    if (count < 1 || mesh_.size() % count != 0) {
      throw UsageError({.code = Code::kBadRankCount,
                        .what = "reshard_after_forward is asked for a number that does not divide the ranks",
                        .where = mesh_.where(),
                        .why = concat("expected a divisor of ", mesh_.size(), ", got ", count),
                        .fix = "give the number of ranks on one host, or true, or false"});
    }
    if (count == 1 || count == mesh_.size()) {
      asked = count != 1;
      return std::nullopt;
    }
    const auto found = made_.find(count);
    return found != made_.end() ? found->second : made_.emplace(count, mesh_.split(count)).first->second;
  }

 private:
  DeviceMesh mesh_;
  std::map<std::int64_t, DeviceMesh> made_;
};

std::vector<Diagnostic> findings_of(const Shared& shared) {
  std::vector<Diagnostic> findings;
  for (const std::string& fqn : shared.outside) {
    findings.push_back(
        {.level = Level::kWarning,
         .code = Code::kUnmanagedParameter,
         .what = "a parameter that no fully_shard unit owns",
         .where = fqn,
         .why = "no unit holds it: each rank has a copy of its own, whose gradient is not reduced",
         .fix = "make the root module a unit, or freeze the parameter, or reduce its gradient yourself"});
  }
  for (const std::string& fqn : shared.ignored) {
    findings.push_back({.level = Level::kNote,
                        .code = Code::kUnmanagedParameter,
                        .what = "a parameter that no fully_shard unit owns",
                        .where = fqn,
                        .why = "it is ignored, as the caller asks",
                        .fix = "reduce its gradient yourself if it is trained, and admit it with "
                               "OptimizerGuard::register_managed"});
  }
  return findings;
}

/// A whole module, or one that was cut before?
void require_unsharded(const torch::nn::Module& module) {
  for (const NamedTensor& named : unique_parameters(module)) {
    if (is_marked_sharded(named.tensor)) {
      refuse_sharded(named.fqn);
    }
    if (named.tensor.is_meta()) {
      throw UsageError(
          {.code = Code::kStillOnMeta,
           .what = "a tensor has no bytes yet",
           .where = named.fqn,
           .fix = "initialise the module before fully_shard(), or load_shards() by a plan and give the plan"});
    }
  }
}

std::vector<UnitModule> units_by_policy(torch::nn::Module& module, const FullyShardOptions& options) {
  auto* model = dynamic_cast<CausalLm*>(&module);
  if (!options.unit_policy && model != nullptr) {
    return model->units();
  }
  std::vector<UnitModule> units{{"", &module}};
  if (options.unit_policy) {
    const std::vector<UnitModule> inside = options.unit_policy(module);
    units.insert(units.end(), inside.begin(), inside.end());
  }
  return units;
}

} // namespace

std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options) {
  require_unsharded(module);
  return fully_shard(module, units_by_policy(module, options), mesh, options);
}

std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const std::vector<UnitModule>& units,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options) {
  require_unsharded(module);
  std::vector<UnitModule> root_first = units;
  std::ranges::stable_partition(root_first, [&](const UnitModule& unit) { return unit.module == &module; });
  const ParameterTable table = parameter_table(module);
  const ShardPlan plan = ShardPlan::build(table,
                                          TieRegistry::of(table),
                                          mesh.axis("dp_shard").size(),
                                          {.policy = options.shard_dim, .dims = options.shard_dims});
  std::shared_ptr<FsdpState> state = fully_shard(module, root_first, plan, mesh, options);
  if (auto* model = dynamic_cast<CausalLm*>(&module)) {
    model->set_unit_runner(state);
  }
  return state;
}

std::shared_ptr<FsdpState> fully_shard(torch::nn::Module& module,
                                       const std::vector<UnitModule>& units,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options) {
  require_new(units);
  if (const std::int64_t ranks = mesh.axis("dp_shard").size(); plan.ranks() != ranks) {
    throw UsageError({.code = Code::kBadRankCount,
                      .what = "the plan is for another number of ranks than the mesh has",
                      .where = mesh.where(),
                      .why = concat("expected ", ranks, ", got ", plan.ranks()),
                      .fix = "build the plan with ShardPlan::build(table, ties, mesh.axis(\"dp_shard\").size())"});
  }
  validate_shared_object(module, plan.ties());
  require_units(units, options);
  NeighbourMeshes neighbours(mesh);
  Shared shared = share_out(module, units, plan, mesh, options);
  std::vector<std::unique_ptr<FsdpParamGroup>> groups;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    FullyShardOptions here = options_of(units[unit].name, unit == 0, options);
    const std::optional<DeviceMesh> near = neighbours.resolve(here.reshard_after_forward);
    groups.push_back(
        std::make_unique<FsdpParamGroup>(units[unit].name, std::move(shared.owned[unit]), mesh, here, near));
  }
  validate_shared_object(module, plan.ties());
  return std::make_shared<FsdpState>(module, mesh, plan, units, std::move(groups), options, findings_of(shared));
}

std::shared_ptr<FsdpState> fully_shard(CausalLm& model,
                                       const ShardPlan& plan,
                                       const DeviceMesh& mesh,
                                       const FullyShardOptions& options) {
  if (sharded_state(model) != nullptr) {
    refuse_sharded(mesh.where());
  }
  std::shared_ptr<FsdpState> state = fully_shard(model, model.units(), plan, mesh, options);
  model.set_unit_runner(state);
  return state;
}

std::shared_ptr<FsdpState> sharded_state(const CausalLm& model) {
  return std::dynamic_pointer_cast<FsdpState>(model.unit_runner());
}

} // namespace tieshard

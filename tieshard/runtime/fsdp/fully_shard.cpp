#include "tieshard/runtime/fsdp/fully_shard.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/same_module.h"
#include "tieshard/runtime/fsdp/shard_checks.h"
#include "tieshard/runtime/fsdp/sharded_mark.h"
#include "tieshard/runtime/fsdp/unit_ownership.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {
namespace {

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

/// A parameter of the plan, and the module's tensor.
struct Owned {
  const ShardedParameter* spec = nullptr;
  at::Tensor tensor;
};

/// The parameters of each unit, and those of none.
struct Shared {
  std::vector<std::vector<Owned>> owned;
  std::vector<std::string> ignored;
  std::vector<std::string> outside;
};

/// Says which unit gets what, and refuses what cannot be cut. Changes nothing.
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
    FsdpParam::require_shardable(plan, spec, found->second, mesh.axis("dp_shard").rank());
    shared.owned[*unit].push_back({&spec, found->second});
  }
  return shared;
}

/// Cuts the parameters of one unit.
std::vector<FsdpParam> cut(const std::vector<Owned>& owned,
                           const ShardPlan& plan,
                           std::int64_t rank,
                           const FullyShardOptions& options) {
  std::vector<FsdpParam> parameters;
  for (const Owned& item : owned) {
    const at::ScalarType stored = item.tensor.scalar_type();
    const bool converted = item.tensor.is_floating_point() && options.mp_policy.param_dtype;
    const at::ScalarType compute = converted ? *options.mp_policy.param_dtype : stored;
    parameters.emplace_back(plan, *item.spec, item.tensor, rank, compute, options.offload_policy);
    mark_sharded(item.tensor);
  }
  return parameters;
}

/// The connections that integer values of reshard_after_forward need, each made once.
class NeighbourMeshes {
 public:
  explicit NeighbourMeshes(const DeviceMesh& mesh) : mesh_(mesh.axis("dp_shard")) {}

  /// Turns an integer that means true or false into that. @returns the neighbours for any other integer. A collective
  std::optional<DeviceMesh> resolve(ReshardAfterForward& asked) {
    if (std::holds_alternative<bool>(asked)) {
      return std::nullopt;
    }
    const std::int64_t count = std::get<std::int64_t>(asked);
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
  auto* model = dynamic_cast<LanguageModel*>(&module);
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
  if (auto* model = dynamic_cast<LanguageModel*>(&module)) {
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
  require_same_module_on_ranks(module, units, plan, mesh, options);
  if (const std::int64_t ranks = mesh.axis("dp_shard").size(); plan.ranks() != ranks) {
    throw UsageError({.code = Code::kBadRankCount,
                      .what = "the plan is for another number of ranks than the mesh has",
                      .where = mesh.where(),
                      .why = concat("expected ", ranks, ", got ", plan.ranks()),
                      .fix = "build the plan with ShardPlan::build(table, ties, mesh.axis(\"dp_shard\").size())"});
  }
  validate_shared_object(module, plan.ties());
  require_own_memory(module);
  require_options(options, mesh);
  require_units(units, options);
  const Shared shared = share_out(module, units, plan, mesh, options);
  NeighbourMeshes neighbours(mesh);
  std::vector<std::unique_ptr<FsdpParamGroup>> groups;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    FullyShardOptions here = options_of(units[unit].name, unit == 0, options);
    const std::optional<DeviceMesh> near = neighbours.resolve(here.reshard_after_forward);
    std::vector<FsdpParam> parameters = cut(shared.owned[unit], plan, mesh.axis("dp_shard").rank(), here);
    groups.push_back(std::make_unique<FsdpParamGroup>(units[unit].name, std::move(parameters), mesh, here, near));
  }
  validate_shared_object(module, plan.ties());
  return std::make_shared<FsdpState>(module, mesh, plan, units, std::move(groups), options, findings_of(shared));
}

std::shared_ptr<FsdpState> fully_shard(LanguageModel& model,
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

std::shared_ptr<FsdpState> sharded_state(const LanguageModel& model) {
  return std::dynamic_pointer_cast<FsdpState>(model.unit_runner());
}

} // namespace tieshard

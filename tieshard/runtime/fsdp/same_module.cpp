#include "tieshard/runtime/fsdp/same_module.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/shape.h"
#include "tieshard/runtime/fsdp/unit_ownership.h"
#include "tieshard/runtime/mesh/same_on_ranks.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {
namespace {

std::string text_of(const std::optional<at::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "not set";
}

std::string text_of(const ReshardAfterForward& policy) {
  const auto* const flag = std::get_if<bool>(&policy);
  return flag == nullptr ? std::to_string(std::get<std::int64_t>(policy)) : *flag ? "true" : "false";
}

std::string text_of(const MixedPrecisionPolicy& policy) {
  return concat("param ",
                text_of(policy.param_dtype),
                ", reduce ",
                text_of(policy.reduce_dtype),
                ", output ",
                text_of(policy.output_dtype),
                ", inputs ",
                policy.cast_forward_inputs ? "cast" : "as they come");
}

std::string text_of(const UnitOptions& options) {
  return concat(options.mp_policy ? text_of(*options.mp_policy) : "as all",
                "; reshard ",
                options.reshard_after_forward ? text_of(*options.reshard_after_forward) : "as all",
                "; checkpointing ",
                !options.activation_checkpointing   ? "as all"
                : *options.activation_checkpointing ? "true"
                                                    : "false");
}

void add_parameters(std::vector<NamedText>& texts,
                    const torch::nn::Module& module,
                    const std::vector<UnitModule>& units,
                    const ShardPlan& plan) {
  std::unordered_map<std::string, at::Tensor> tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  const UnitOwnership ownership(module, units);
  for (const ShardedParameter& spec : plan.parameters()) {
    std::vector<std::string> names = plan.ties().aliases(spec.fqn);
    names.insert(names.begin(), spec.fqn);
    const std::optional<std::size_t> unit = ownership.owner(names);
    std::string text = concat(to_string(spec.shape), " on dim ", spec.dim);
    if (const auto found = tensors.find(spec.fqn); found != tensors.end()) {
      text += concat(" ", c10::toString(found->second.scalar_type()), found->second.requires_grad() ? "" : " frozen");
    }
    for (std::size_t alias = 1; alias < names.size(); ++alias) {
      text += concat(", tied to ", names[alias]);
    }
    texts.push_back({concat("parameter ", spec.fqn),
                     concat(text, unit ? concat(" in unit \"", units[*unit].name, "\"") : " in no unit")});
  }
}

void add_options(std::vector<NamedText>& texts, const FullyShardOptions& options) {
  texts.push_back({"mp_policy", text_of(options.mp_policy)});
  texts.push_back({"reshard_after_forward", text_of(options.reshard_after_forward)});
  texts.push_back(
      {"gradient_divide_factor", options.gradient_divide_factor ? concat(*options.gradient_divide_factor) : "not set"});
  for (const auto& [unit, special] : options.per_unit) {
    texts.push_back({concat("per_unit \"", unit, "\""), text_of(special)});
  }
  texts.push_back({"offload_policy.to_host", options.offload_policy.to_host ? "true" : "false"});
  texts.push_back({"activation_checkpointing", options.activation_checkpointing ? "true" : "false"});
  texts.push_back({"forward_prefetch", std::to_string(options.forward_prefetch)});
  texts.push_back({"backward_prefetch", std::to_string(options.backward_prefetch)});
  std::string ignored = concat(options.ignored_tensors.size(), " tensors");
  for (const std::string& fqn : options.ignored) {
    ignored += concat(" and ", fqn);
  }
  texts.push_back({"ignored", std::move(ignored)});
  texts.push_back({"allow_idle_units", options.allow_idle_units ? "true" : "false"});
}

} // namespace

void require_same_module_on_ranks(const torch::nn::Module& module,
                                  const std::vector<UnitModule>& units,
                                  const ShardPlan& plan,
                                  const DeviceMesh& mesh,
                                  const FullyShardOptions& options) {
  if (mesh.size() == 1) {
    return;
  }
  std::vector<NamedText> texts;
  std::string names;
  for (const UnitModule& unit : units) { // their order too: units run and are gathered by it
    names += concat(names.empty() ? "" : ", ", "\"", unit.name, "\"");
  }
  add_parameters(texts, module, units, plan);
  texts.push_back({"the list of units", std::move(names)});
  add_options(texts, options);
  const std::string difference = difference_over_ranks(mesh, "fully_shard", texts);
  if (!difference.empty()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "the ranks give fully_shard different modules or options",
                      .where = mesh.where(),
                      .why = concat("expected the same on every rank, got: ", difference),
                      .fix = "build the same module, with the same units and options, on every rank"});
  }
}

} // namespace tieshard

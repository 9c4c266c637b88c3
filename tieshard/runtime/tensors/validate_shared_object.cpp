#include "tieshard/runtime/tensors/validate_shared_object.h"

#include <map>
#include <string>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {
namespace {

std::string relation(const at::Tensor& first, const at::Tensor& second) {
  if (first.sizes() != second.sizes()) {
    return concat("expected one tensor, got two of shapes ",
                  to_string(first.sizes().vec()),
                  " and ",
                  to_string(second.sizes().vec()));
  }
  if (first.is_meta() || second.is_meta()) {
    return "expected one tensor, got two without values";
  }
  return at::equal(first, second) ? "expected one tensor, got two with equal values: they drift apart at the first step"
                                  : "expected one tensor, got two with different values";
}

} // namespace

void validate_shared_object(const torch::nn::Module& module, const TieRegistry& ties) {
  std::map<std::string, at::Tensor> tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  const auto find = [&](const std::string& name) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      throw UsageError(
          {.code = Code::kTieUnknownName,
           .what = "a declared tie names no parameter",
           .where = name,
           .why = concat("the module has ", tensors.size(), " parameter names, not this one"),
           .fix = "register the tied weight under both names: register_parameter(name, the other tensor)"});
    }
    return found->second;
  };
  for (const TieGroup& group : ties.groups()) {
    for (const TieAlias& alias : group.aliases) {
      const at::Tensor canonical = find(group.canonical);
      const at::Tensor aliased = find(alias.name);
      if (!canonical.is_same(aliased)) {
        throw UsageError(
            {.code = Code::kTieNotShared,
             .what = "names that should be one tensor are two",
             .where = concat(group.canonical, " and ", alias.name),
             .why = relation(canonical, aliased),
             .fix = "assign the one to the other before anything is loaded or sharded; a copy is not a tie"});
      }
    }
  }
  std::map<const c10::TensorImpl*, std::string> owner;
  for (const auto& named : named_parameters(module)) {
    const auto [entry, inserted] = owner.emplace(named.tensor.unsafeGetTensorImpl(), ties.canonical(named.fqn));
    if (!inserted && entry->second != ties.canonical(named.fqn)) {
      throw UsageError(
          {.code = Code::kTieNotShared,
           .what = "names that should be two tensors are one",
           .where = concat(entry->second, " and ", named.fqn),
           .why = "the module registers one tensor under both names, the registry holds them apart",
           .fix = "build the registry from the module (TieRegistry::of) or give each name its own tensor"});
    }
  }
}

TieRegistry validate_shared_object(const torch::nn::Module& module) {
  TieRegistry ties = TieRegistry::of(parameter_table(module));
  validate_shared_object(module, ties);
  return ties;
}

} // namespace tieshard

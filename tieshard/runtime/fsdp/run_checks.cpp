#include "tieshard/runtime/fsdp/run_checks.h"

#include <cstddef>

#include "tieshard/core/base/error.h"

namespace tieshard {

Running::Running(Modules& running, const torch::nn::Module& unit, const std::string& where)
    : running_(running), unit_(&unit) {
  if (!running_.insert(unit_).second) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a unit runs inside itself",
                      .where = where,
                      .fix = "make the module around the recursion the unit, or put no run around the inner calls"});
  }
}

Running::~Running() {
  running_.erase(unit_);
}

std::vector<std::uint32_t> versions(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint32_t> counts;
  for (const at::Tensor& tensor : tensors) {
    const bool counted = tensor.defined() && !tensor.is_inference();
    counts.push_back(counted ? static_cast<std::uint32_t>(tensor._version()) : 0);
  }
  return counts;
}

void require_unchanged(const std::vector<at::Tensor>& inputs,
                       const std::vector<std::uint32_t>& before,
                       bool checkpointed,
                       const std::string& where) {
  const std::vector<std::uint32_t> after = versions(inputs);
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    const bool matters = inputs[index].defined() && (inputs[index].requires_grad() || checkpointed);
    if (matters && after[index] != before[index]) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "a unit changed its input in place",
                        .where = concat(where, ", input ", index),
                        .why = "gradients of what the caller had in it would be wrong",
                        .fix = "compute a new tensor (mul in place of mul_), or clone the input first"});
    }
  }
}

void require_own_outputs(const std::vector<at::Tensor>& outputs,
                         const std::vector<FsdpParam>& parameters,
                         const std::string& where) {
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    if (!outputs[index].defined() || !outputs[index].has_storage()) {
      continue;
    }
    for (const FsdpParam& parameter : parameters) {
      if (outputs[index].is_alias_of(parameter.whole_tensor())) {
        throw UsageError({.code = Code::kWrongState,
                          .what = "a unit's output is its own parameter, or a view of it",
                          .where = concat(where, ", output ", index, ", ", parameter.fqn()),
                          .why = "the parameter is freed after the unit",
                          .fix = "return a copy (clone()), or let the module around it be the unit"});
      }
    }
  }
}

} // namespace tieshard

// tieshard/runtime/tensors/module_parameters.h
//
// A module's parameters, enumerated once per tensor and once per name.
//
// Flow:   any torch::nn::Module -> [this] -> core's ParameterTable, load, fsdp, optim
// Note:   C++ parameters() and named_parameters() do not remove duplicates, unlike Python's: a tied tensor is listed
// once
//         per name, so an optimizer built from them steps it twice and a norm counts it twice. Never use them for that.

#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

struct NamedTensor {
  std::string fqn;
  at::Tensor tensor; ///< the module's own (same TensorImpl)
};

/// Every name of every parameter, in registration order.
std::vector<NamedTensor> named_parameters(const torch::nn::Module& module);

/// Each parameter once, under its first name: what an optimizer or a norm has to use.
std::vector<NamedTensor> unique_parameters(const torch::nn::Module& module);

/// The module as plain data for core: names of one tensor have one identity.
ParameterTable parameter_table(const torch::nn::Module& module);

} // namespace tieshard

#include "tieshard/runtime/tensors/module_parameters.h"

#include <unordered_set>

#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {

std::vector<NamedTensor> named_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> named;
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    named.push_back({item.key(), item.value()});
  }
  return named;
}

std::vector<NamedTensor> unique_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> unique;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (NamedTensor& named : named_parameters(module)) {
    if (seen.insert(named.tensor.unsafeGetTensorImpl()).second) {
      unique.push_back(std::move(named));
    }
  }
  return unique;
}

ParameterTable parameter_table(const torch::nn::Module& module) {
  ParameterTable table;
  for (const NamedTensor& named : named_parameters(module)) {
    table.push_back({.fqn = named.fqn,
                     .shape = named.tensor.sizes().vec(),
                     .dtype = from_torch(named.tensor.scalar_type()),
                     .identity = reinterpret_cast<std::uint64_t>(named.tensor.unsafeGetTensorImpl())});
  }
  return table;
}

} // namespace tieshard

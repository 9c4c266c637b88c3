#include "tieshard/core/state/parameter_names.h"

#include <array>
#include <string_view>

#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::array<std::string_view, 6> kMoments = {
    ".exp_avg", ".exp_avg_sq", ".max_exp_avg_sq", ".momentum_buffer", ".master_weight", ".step"};

} // namespace

ParameterNames::ParameterNames(const ShardedFiles& files, const Manifest* manifest) {
  if (manifest != nullptr) {
    for (const ParameterRecord& parameter : manifest->parameters) {
      if (!parameter.optimizer) {
        continue;
      }
      for (const std::string& moment : parameter.optimizer->moments) {
        parameters_.emplace(concat(parameter.fqn, ".", moment), parameter.fqn);
      }
    }
    return;
  }
  for (const ShardedTensor& tensor : files.tensors()) {
    for (const std::string_view moment : kMoments) {
      if (!tensor.name.ends_with(moment)) {
        continue;
      }
      std::string parameter = tensor.name.substr(0, tensor.name.size() - moment.size());
      if (files.find(parameter) != nullptr) {
        parameters_.emplace(tensor.name, std::move(parameter));
      }
    }
  }
}

const std::string& ParameterNames::parameter_of(const std::string& tensor) const {
  const auto found = parameters_.find(tensor);
  return found == parameters_.end() ? tensor : found->second;
}

} // namespace tieshard

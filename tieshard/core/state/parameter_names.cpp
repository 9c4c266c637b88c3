#include "tieshard/core/state/parameter_names.h"

#include <array>
#include <string_view>

#include "tieshard/core/base/error.h"
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

void require_as_recorded(const ShardedFiles& files, const Manifest& manifest) {
  if (files.id() != manifest.id) {
    throw InputError({.code = Code::kSavesMixed,
                      .what = "sharded files of several saves are in one directory",
                      .where = files.directory().string(),
                      .why = concat("expected the manifest's id ",
                                    manifest.id,
                                    " in all files, got ",
                                    files.id().empty() ? "none" : format_name(files.id())),
                      .fix = "keep manifest and files of one save; an earlier checkpoint may be whole"});
  }
  std::vector<std::string> wrong;
  std::string first;
  const auto require = [&](const std::string& name, const ParameterRecord& parameter, bool same_dtype) {
    const ShardedTensor* const tensor = files.find(name);
    const bool right =
        tensor != nullptr && tensor->shape == parameter.shape && (!same_dtype || tensor->dtype == parameter.dtype);
    if (right) {
      return;
    }
    if (wrong.empty()) {
      first = concat(
          "expected ",
          format_name(name),
          same_dtype ? concat(" ", tieshard::name(parameter.dtype)) : std::string(),
          " ",
          to_string(parameter.shape),
          ", got ",
          tensor == nullptr ? "no such tensor" : concat(tieshard::name(tensor->dtype), " ", to_string(tensor->shape)));
    }
    wrong.push_back(name);
  };
  for (const ParameterRecord& parameter : manifest.parameters) {
    if (parameter.stored) {
      require(parameter.fqn, parameter, true);
    }
    if (parameter.optimizer) {
      for (const std::string& moment : parameter.optimizer->moments) {
        require(concat(parameter.fqn, ".", moment), parameter, false);
      }
    }
  }
  if (!wrong.empty()) {
    throw InputError({.code = Code::kCheckpointIncomplete,
                      .what = "a training checkpoint is not what its manifest says",
                      .where = concat(files.directory().string(), ", ", format_names(wrong)),
                      .why = first,
                      .fix = "use another checkpoint of the run, or copy this one again"});
  }
}

} // namespace tieshard

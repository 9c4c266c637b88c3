#include "tieshard/core/families/stored_table.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/scale_names.h"
#include "tieshard/core/families/stored_ties.h"

namespace tieshard {
namespace {

constexpr std::int64_t kBlockBytes = 16; ///< of MXFP4: 32 values of 4 bits

/// Values that scales belong to; F8_E8M0 is what scales themselves are.
bool is_fp8(DType dtype) {
  return is_float8(dtype) && dtype != DType::kF8E8M0;
}

std::string quantization_method(const HfConfig& config) {
  const auto quantization = config.json().find("quantization_config");
  if (quantization == config.json().end() || !quantization->is_object()) {
    return "";
  }
  const auto method = quantization->find("quant_method");
  return method == quantization->end() || !method->is_string() ? "" : method->get<std::string>();
}

/// "model.norm" of "model.norm.weight"; empty for a name without a dot.
std::string_view parent(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// True for the scale of an FP8 weight that is stored as well.
bool is_fp8_scale(const Checkpoint& checkpoint, std::string_view name) {
  for (const std::string_view suffix : kScaleSuffixes) {
    if (name.ends_with(suffix)) {
      const StoredTensor* const values = checkpoint.find(name.substr(0, name.size() - suffix.size()));
      if (values != nullptr && is_fp8(values->dtype)) {
        return true;
      }
    }
  }
  if (!name.ends_with(".input_scale")) {
    return false;
  }
  const StoredTensor* const values = checkpoint.find(std::string(parent(name)) + ".weight");
  return values != nullptr && is_fp8(values->dtype);
}

/// X [..., in, out] for X_blocks [..., out, in/32, 16]; nothing for another tensor.
std::optional<ParameterInfo> of_mxfp4_blocks(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  constexpr std::string_view kSuffix = "_blocks";
  const std::size_t rank = tensor.shape.size();
  if (!tensor.name.ends_with(kSuffix) || tensor.dtype != DType::kU8 || rank < 3 || tensor.shape.back() != kBlockBytes) {
    return std::nullopt;
  }
  const std::string name = tensor.name.substr(0, tensor.name.size() - kSuffix.size());
  if (checkpoint.find(name) != nullptr) {
    return std::nullopt;
  }
  Shape shape(tensor.shape.begin(), tensor.shape.end() - 3);
  shape.push_back(tensor.shape[rank - 2] * kBlockBytes * 2);
  shape.push_back(tensor.shape[rank - 3]);
  return ParameterInfo{.fqn = name, .shape = std::move(shape), .dtype = DType::kBF16};
}

std::optional<ParameterInfo> parameter_of(const Checkpoint& checkpoint, const StoredTensor& tensor, bool mxfp4) {
  if (is_wide_float(tensor.dtype)) {
    return is_fp8_scale(checkpoint, tensor.name)
               ? std::nullopt
               : std::optional(ParameterInfo{.fqn = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype});
  }
  if (is_fp8(tensor.dtype)) {
    return ParameterInfo{.fqn = tensor.name, .shape = tensor.shape, .dtype = DType::kBF16};
  }
  return mxfp4 ? of_mxfp4_blocks(checkpoint, tensor) : std::nullopt;
}

} // namespace

ParameterTable table_of_stored(const Checkpoint& checkpoint) {
  const bool mxfp4 = quantization_method(checkpoint.config()) == "mxfp4";
  const std::vector<FamilyTie> ties = ties_of_stored(checkpoint);
  std::map<std::string, std::optional<ParameterInfo>, std::less<>> aliases; // behind what owns their storage
  for (const FamilyTie& tie : ties) {
    aliases.emplace(tie.alias, std::nullopt);
  }
  ParameterTable table;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    std::optional<ParameterInfo> parameter = parameter_of(checkpoint, tensor, mxfp4);
    if (!parameter) {
      continue;
    }
    if (const auto alias = aliases.find(tensor.name); alias != aliases.end()) {
      alias->second = std::move(parameter);
    } else {
      table.push_back(*std::move(parameter));
    }
  }
  for (const FamilyTie& tie : ties) {
    std::optional<ParameterInfo>& alias = aliases.at(tie.alias);
    const auto canonical = std::ranges::find(table, tie.canonical, &ParameterInfo::fqn);
    if (!alias && canonical != table.end()) { // a head that is not stored
      alias = ParameterInfo{.fqn = tie.alias, .shape = canonical->shape, .dtype = canonical->dtype};
    }
    if (alias) {
      table.push_back(*std::move(alias));
    }
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i].identity = i + 1;
  }
  return table;
}

} // namespace tieshard

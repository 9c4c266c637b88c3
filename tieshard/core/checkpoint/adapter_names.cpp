#include "tieshard/core/checkpoint/adapter_names.h"

#include <algorithm>
#include <optional>
#include <string>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

/// Where the adapter's own part begins in `name`, which is where its layer's name ends.
std::optional<std::size_t> adapter_part(std::string_view name) {
  for (std::size_t begin = 0; begin != std::string_view::npos;) {
    const std::string_view rest = name.substr(begin);
    for (const std::string_view start : {"lora_", "ia3_l", "hada_", "lokr_", "oft_", "boft_", "vera_lambda_"}) {
      if (rest.starts_with(start)) {
        return begin;
      }
    }
    const std::size_t dot = name.find('.', begin);
    begin = dot == std::string_view::npos ? dot : dot + 1;
  }
  return std::nullopt;
}

} // namespace

bool is_adapter_name(std::string_view name) {
  return adapter_part(name).has_value();
}

bool are_adapters_alone(const std::vector<StoredTensor>& tensors) {
  const auto is_stored = [&tensors](const std::string& name) {
    const auto name_of = [](const StoredTensor& tensor) -> std::string_view { return tensor.name; };
    return std::ranges::binary_search(tensors, std::string_view(name), {}, name_of);
  };
  std::size_t adapters = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto part = adapter_part(tensor.name);
    if (!part) {
      continue;
    }
    ++adapters;
    const std::string_view layer = std::string_view(tensor.name).substr(0, *part);
    if (is_stored(concat(layer, "weight")) || is_stored(concat(layer, "base_layer.weight"))) {
      return false;
    }
  }
  return adapters > 0 && 2 * adapters >= tensors.size();
}

} // namespace tieshard

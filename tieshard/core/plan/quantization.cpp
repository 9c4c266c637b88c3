#include "tieshard/core/plan/quantization.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

const Json* find_object(const Json& holder, const char* key) {
  const auto found = holder.find(key);
  return found == holder.end() || !found->is_object() ? nullptr : &*found;
}

std::optional<ScaleBlock> block_of(const Json& fields, const std::string& where) {
  const auto found = fields.find("weight_block_size");
  if (found == fields.end() || found->is_null()) {
    return std::nullopt;
  }
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  const auto usable = [](const Json& size) {
    return size.is_number_integer() && size.get<std::int64_t>() >= 1 && size.get<std::int64_t>() <= kLargest;
  };
  if (!found->is_array() || found->size() != 2 || !std::ranges::all_of(*found, usable)) {
    throw InputError({.code = Code::kConfigValue,
                      .what = "a field of config.json has a value that cannot be used",
                      .where = concat(where, ", quantization_config.weight_block_size"),
                      .why = concat("expected two positive integers, got ", found->dump()),
                      .fix = "restore the quantization_config that these weights were saved with"});
  }
  return ScaleBlock{(*found)[0].get<std::int64_t>(), (*found)[1].get<std::int64_t>()};
}

std::int64_t started_blocks(std::int64_t size, std::int64_t block) {
  return size / block + (size % block != 0 ? 1 : 0);
}

} // namespace

std::optional<QuantizationConfig> quantization_of(const HfConfig& config) {
  const Json* fields = find_object(config.json(), "quantization_config");
  if (fields == nullptr) {
    const Json* const text = find_object(config.json(), "text_config");
    fields = text == nullptr ? nullptr : find_object(*text, "quantization_config");
  }
  if (fields == nullptr) {
    return std::nullopt;
  }
  QuantizationConfig result{.method = {}, .block = block_of(*fields, config.where())};
  if (const auto method = fields->find("quant_method"); method != fields->end() && method->is_string()) {
    result.method = method->get<std::string>();
  }
  return result;
}

std::optional<std::string> scaled_weight(std::string_view name) {
  for (const std::string_view suffix :
       {"_scale_inv", "_global_scale", "_scale_2", "_scale", "_scales", "_zero_point"}) {
    if (name.ends_with(suffix) && name.size() > suffix.size()) {
      return std::string(name.substr(0, name.size() - suffix.size()));
    }
  }
  for (const std::string_view suffix : {".scale_inv", ".scale", ".scales"}) {
    if (name.ends_with(suffix) && name.size() > suffix.size()) {
      return concat(name.substr(0, name.size() - suffix.size()), ".weight");
    }
  }
  return std::nullopt;
}

bool is_packed_weight(const StoredTensor& tensor) {
  if (is_loadable_float(tensor.dtype)) {
    return false;
  }
  constexpr std::string_view kEndings[] = {
      ".weight", ".qweight", ".weight_packed", ".W_q", ".weight._data", ".codes", "_blocks"};
  return std::ranges::any_of(
      kEndings, [&tensor](std::string_view ending) { return std::string_view(tensor.name).ends_with(ending); });
}

bool is_activation_scale(std::string_view name) {
  constexpr std::string_view kEndings[] = {"input_scale",
                                           "input_scale_ub",
                                           "input_global_scale",
                                           "output_scale",
                                           "activation_scale",
                                           "act_scale",
                                           ".q_scale",
                                           ".k_scale",
                                           ".v_scale",
                                           ".kv_scale",
                                           ".prob_scale"};
  return std::ranges::any_of(kEndings, [name](std::string_view ending) { return name.ends_with(ending); });
}

std::optional<ScaleBlock> scale_block(const Shape& values,
                                      const Shape& scales,
                                      const std::optional<ScaleBlock>& block) {
  const std::size_t leading = values.size() < 2 ? 0 : values.size() - 2;
  const std::int64_t rows = values.size() < 2 ? 1 : std::max<std::int64_t>(values[leading], 1);
  const std::int64_t columns = values.empty() ? 1 : std::max<std::int64_t>(values.back(), 1);
  const Shape blocks =
      block ? Shape{started_blocks(rows, block->rows), started_blocks(columns, block->columns)} : Shape{};
  const bool too_few_blocks = block && scales.size() >= 2 && numel(blocks) > 1; // a grid of one, where more are due
  if (numel(scales) == 1 && scales.size() <= std::max<std::size_t>(values.size(), 1) && !too_few_blocks) {
    return ScaleBlock{rows, columns};
  }
  if (values.size() < 2) {
    return std::nullopt;
  }
  const Shape stack(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(leading));
  const auto is_grid = [&](const Shape& grid) {
    Shape stacked = stack;
    stacked.insert(stacked.end(), grid.begin(), grid.end());
    return scales == stacked;
  };
  if (block && is_grid(blocks)) {
    return block;
  }
  if (is_grid({rows}) || is_grid({rows, 1})) {
    return ScaleBlock{1, columns};
  }
  if (leading > 0 && (is_grid({}) || is_grid({1, 1}))) {
    return ScaleBlock{rows, columns};
  }
  return std::nullopt;
}

} // namespace tieshard

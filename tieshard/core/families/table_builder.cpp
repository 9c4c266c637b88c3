#include "tieshard/core/families/table_builder.h"

#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"

namespace tieshard {

TableBuilder::TableBuilder(const HfConfig& config) : config_(config), dtype_(config.dtype().value_or(DType::kF32)) {}

void TableBuilder::add(const std::string& fqn, Shape shape) {
  if (!checked_bytes(shape, DType::kF64)) { // the widest that it can be loaded into
    refuse_config(config_,
                  fqn,
                  concat("its shape would be ", to_string(shape), ", which is no size"),
                  "write the sizes that the weights were made with");
  }
  table_.push_back({.fqn = fqn, .shape = std::move(shape), .dtype = dtype_, .identity = table_.size() + 1});
}

void TableBuilder::linear(const std::string& module, std::int64_t out, std::int64_t in, bool bias) {
  add(module + ".weight", {out, in});
  if (bias) {
    add(module + ".bias", {out});
  }
}

void TableBuilder::conv1d(const std::string& module, std::int64_t in, std::int64_t out) {
  add(module + ".weight", {in, out});
  add(module + ".bias", {out});
}

void TableBuilder::layer_norm(const std::string& module, std::int64_t size) {
  add(module + ".weight", {size});
  add(module + ".bias", {size});
}

std::string layer_name(std::string_view stack, std::int64_t layer) {
  std::string name(stack);
  name += '.';
  name += std::to_string(layer);
  return name;
}

void append_layer_units(std::vector<UnitSpec>& units, std::string_view stack, std::int64_t layers) {
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::string name = layer_name(stack, layer);
    units.push_back({.name = name, .prefix = name + "."});
  }
}

} // namespace tieshard

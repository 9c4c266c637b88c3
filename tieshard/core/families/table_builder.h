// tieshard/core/families/table_builder.h
//
// Builds a ParameterTable module by module, as a model's constructor registers its parameters.
//
// Flow: one file a family -> [this] -> parameter_table.h

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

/// Appends parameters in registration order, each with an identity of its own, in the config's dtype (F32 when it names
/// none).
class TableBuilder {
 public:
  explicit TableBuilder(const HfConfig& config);

  /// @throws InputError config-value when the shape has more elements than a file can hold
  void add(const std::string& fqn, Shape shape);

  /// torch.nn.Linear: `<module>.weight` [out, in] and, with a bias, `<module>.bias` [out].
  void linear(const std::string& module, std::int64_t out, std::int64_t in, bool bias);

  /// Conv1D of GPT-2: `<module>.weight` [in, out] and `<module>.bias` [out].
  void conv1d(const std::string& module, std::int64_t in, std::int64_t out);

  /// torch.nn.LayerNorm: `<module>.weight` and `<module>.bias`, both [size].
  void layer_norm(const std::string& module, std::int64_t size);

  ParameterTable take() {
    return std::move(table_);
  }

 private:
  const HfConfig& config_;
  DType dtype_;
  ParameterTable table_;
};

/// "<stack>.<layer>", e.g. "model.layers.3".
std::string layer_name(std::string_view stack, std::int64_t layer);

/// One unit for each of the `layers` modules "<stack>.0", "<stack>.1", ... appended to `units`.
void append_layer_units(std::vector<UnitSpec>& units, std::string_view stack, std::int64_t layers);

} // namespace tieshard

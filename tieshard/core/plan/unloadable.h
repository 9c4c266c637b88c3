// tieshard/core/plan/unloadable.h
//
// What is said when a checkpoint cannot fill the parameters of a plan: every offender in one error, with its remedy.
//
// Flow: weight_source.cpp -> [this] -> families/family.h

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/quantization.h"

namespace tieshard {

/// A stored tensor of another shape than expected.
struct ShapeMismatch {
  const StoredTensor* stored;
  Shape expected;
  const StoredTensor* partner = nullptr; ///< the values of a scale, the scales of blocks; null for plain weights
};

/// Quantised values, and the name that their scale should have.
struct MissingScale {
  const StoredTensor* values;
  std::string scale;
};

/// A scale, and the weight that it would change.
struct StrayScale {
  const StoredTensor* scale;
  const StoredTensor* weight;
};

/// "a, b, c and 3 more": the first 20 names.
std::string list_names(const std::vector<std::string>& names);

/// shape-mismatch, naming the fields of config.json that say the sizes
Diagnostic shapes_differ(const Checkpoint& checkpoint, const std::vector<ShapeMismatch>& mismatches);

/// dtype-not-loadable, naming the quant_method of config.json
Diagnostic dtypes_not_loadable(const Checkpoint& checkpoint,
                               const std::vector<const StoredTensor*>& offenders,
                               const std::optional<QuantizationConfig>& quantization);

/// scale-missing, naming values and scales
Diagnostic scales_missing(const Checkpoint& checkpoint, const std::vector<MissingScale>& missing);

/// stray-scale. `quantised`: config.json has a quantization_config.
Diagnostic scales_stray(const Checkpoint& checkpoint, const std::vector<StrayScale>& strays, bool quantised);

} // namespace tieshard

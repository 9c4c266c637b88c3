// tieshard/core/families/activation_sizes.h
//
// What a model keeps of its forward for the backward, as numbers: enough to say how much memory a step needs.
//
// Flow:   decoder_config.h -> [this] -> plan/training_memory.h
// Source: the model class of the family in runtime/models, read line by line.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tieshard/core/checkpoint/hf_config.h"

namespace tieshard {

/// Every list is of tensors, each by its elements a token in the compute dtype.
struct ActivationSizes {
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::vector<std::int64_t> kept{};     ///< by one layer, from its forward to its backward
  std::int64_t kept_float32 = 0;        ///< by one layer too, in float32 whatever the compute dtype
  std::vector<std::int64_t> backward{}; ///< that exist at once while the backward of a layer runs
};

/// Those of the model class that computes the family of `config`. Nothing where there is none, and for a config whose
/// forward keeps what no formula tells. @throws InputError config-missing-key, config-value
std::optional<ActivationSizes> activation_sizes(const HfConfig& config);

/// The same without what the layers keep, for decoders of which that is not known: enough for all else that a step
/// takes. Nothing where there is no decoder. @throws InputError config-missing-key, config-value
std::optional<ActivationSizes> sizes_without_activations(const HfConfig& config);

} // namespace tieshard

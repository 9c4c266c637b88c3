// tieshard/core/plan/quantization.h
//
// What config.json and the names of stored tensors say about quantised weights and their scales.
//
// Flow:   checkpoint/hf_config.h -> [this] -> weight_source, unloadable
// Source: `quantization_config` of transformers; tensor names of its fp8, fbgemm_fp8 and mxfp4 methods and of
//         compressed-tensors.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/checkpoint/scale_names.h"
#include "tieshard/core/plan/weight_source.h"

namespace tieshard {

/// `quantization_config`, as far as it decides what scales mean.
struct QuantizationConfig {
  std::string method;                ///< `quant_method`; empty when it names none
  std::optional<ScaleBlock> block{}; ///< `weight_block_size`
};

/// The object at the top level or in text_config; nothing when there is none. @throws InputError config-value when
/// weight_block_size is no pair of positive integers
std::optional<QuantizationConfig> quantization_of(const HfConfig& config);

/// The name of the weight that a tensor of this name would scale or shift, e.g. "q_proj.weight" of
/// "q_proj.weight_scale_inv"; nothing for other names. Whether there is such a weight is not looked at.
std::optional<std::string> scaled_weight(std::string_view name);

/// True for a tensor in the place of a weight that only its quantiser can read, by its name and dtype: of GPTQ, AWQ and
/// compressed-tensors (X.qweight, X.weight_packed), HQQ, quanto and AQLM, MXFP4 blocks, or integers called X.weight.
/// Call for tensors that give no parameter its values.
bool is_packed_weight(const StoredTensor& tensor);

/// True for scales of activations and of the key-value cache: weights do not depend on them.
bool is_activation_scale(std::string_view name);

/// Which elements share a scale, by the two shapes: one for all ([], [1]), one a row ([out], [out, 1]), one a matrix
/// of a stack, or, by `block`, one a block ([ceil(out / b), ceil(in / b)]). Nothing when the shapes do not fit
/// together.
std::optional<ScaleBlock> scale_block(const Shape& values, const Shape& scales, const std::optional<ScaleBlock>& block);

} // namespace tieshard

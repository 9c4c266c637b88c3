// tieshard/core/checkpoint/scale_names.h
//
// The scales of FP8 weights, by their names.
//
// Flow:   families, ties, plan -> [this] -> checkpoint.h
// Source: tensor names of the fp8 and fbgemm_fp8 methods of transformers and of compressed-tensors.

#pragma once

#include <array>
#include <string_view>

#include "tieshard/core/checkpoint/checkpoint.h"

namespace tieshard {

/// What a weight's scale may be called: NAME_scale_inv, NAME_scale.
constexpr std::array<std::string_view, 2> kScaleSuffixes = {"_scale_inv", "_scale"};

/// The stored scale of the weight `name`, or null.
const StoredTensor* find_scale(const Checkpoint& checkpoint, std::string_view name);

} // namespace tieshard

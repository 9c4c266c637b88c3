// tieshard/core/io/decode_fp8.h
//
// FP8 values times their scales: value = float32(fp8) * float32(scale), rounded once to the target.
//
// Flow:   decode.h -> [this] -> stored_window.h
// Source: the order of operations and the dtypes of transformers' FP8 dequantisation.

#pragma once

#include "tieshard/core/io/decode.h"

namespace tieshard {

/// decode_piece() for this encoding.
std::uint64_t decode_fp8(const Checkpoint& checkpoint,
                         const SliceRead& read,
                         const DecodePiece& piece,
                         std::byte* target,
                         DType target_dtype,
                         std::vector<std::byte>& buffer);

} // namespace tieshard

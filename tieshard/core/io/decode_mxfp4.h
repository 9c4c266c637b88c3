// tieshard/core/io/decode_mxfp4.h
//
// MXFP4 values: 32 values of 4 bits share one exponent; stored [..., out, in/32, 16], the parameter is [..., in, out].
//
// Flow:   decode.h -> [this] -> stored_window.h
// Source: OCP microscaling formats (E2M1, E8M0); GPT-OSS stores the low nibble first.

#pragma once

#include "tieshard/core/io/decode.h"

namespace tieshard {

constexpr std::int64_t kMxfp4Group = 32;       ///< values that share a scale
constexpr std::uint64_t kMxfp4BlockBytes = 16; ///< bytes of a group

/// decode_piece() for this encoding.
std::uint64_t decode_mxfp4(const Checkpoint& checkpoint,
                           const SliceRead& read,
                           const DecodePiece& piece,
                           std::byte* target,
                           DType target_dtype,
                           std::vector<std::byte>& buffer);

} // namespace tieshard

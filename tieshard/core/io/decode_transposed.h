// tieshard/core/io/decode_transposed.h
//
// Weights whose file holds the last two dimensions swapped (Conv1D of GPT-2), turned tile by tile.
//
// Flow:   decode.h -> [this] -> stored_window.h

#pragma once

#include "tieshard/core/io/decode.h"

namespace tieshard {

/// decode_piece() for this encoding.
std::uint64_t decode_transposed(const Checkpoint& checkpoint,
                                const SliceRead& read,
                                const DecodePiece& piece,
                                std::byte* target,
                                DType target_dtype,
                                std::vector<std::byte>& buffer);

} // namespace tieshard

// tieshard/core/io/convert.h
//
// Floating point conversion: every float of 8 bits and more to F16, BF16, F32 and F64, rounding to nearest even as
// torch does.
//
// Flow: reader, decode, slice_writer -> [this]

#pragma once

#include <cstddef>
#include <cstdint>

#include "tieshard/core/base/dtype.h"

namespace tieshard {

/// True when convert() can take `from` to `to`: between equal dtypes, and from any float but F4 and F6 to a wide one.
bool convertible(DType from, DType to);

/// Converts `count` elements. Neither pointer needs alignment; the ranges may not overlap. NaN stays NaN, overflow
/// becomes infinity. Pre: convertible(from, to).
void convert(const std::byte* source, DType from, std::byte* target, DType to, std::size_t count);

} // namespace tieshard

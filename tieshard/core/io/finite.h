// tieshard/core/io/finite.h
//
// Looks for NaN and infinity in stored or loaded values, at the speed at which memory is read.
//
// Flow: reader, decode, core/doctor -> [this]

#pragma once

#include <cstddef>

#include "tieshard/core/base/dtype.h"

namespace tieshard {

/// Index of the first of `count` elements that is NaN or infinite; `count` when there is none. `data` needs no
/// alignment. Pre: is_wide_float(dtype).
std::size_t first_not_finite(const std::byte* data, DType dtype, std::size_t count);

} // namespace tieshard

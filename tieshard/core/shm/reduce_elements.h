// tieshard/core/shm/reduce_elements.h
//
// Sum, minimum and maximum of several arrays, element by element, in the order in which the arrays are given.
//
// Flow: shm_collectives -> [this] -> base/float_formats
//
// The order is all that a floating-point sum depends on, so the same arrays in the same order give the same bits, in
// whatever pieces and at whatever speed they came. F16 and BF16 are accumulated in fp32 and rounded once; integers wrap
// around; a NaN in any array makes the minimum and the maximum NaN, as in torch.

#pragma once

#include <cstddef>
#include <span>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/shm/shm_layout.h"

namespace tieshard {

/// target[i] = arrays[0][i] op arrays[1][i] op ... for `count` elements of `dtype`: F16, BF16, F32, F64 or an integer
/// of 8 to 64 bits. `target` may be one of the arrays, but may not overlap one otherwise.
/// @param arrays  at least one, each aligned to its element
/// @throws InternalError bug for another dtype
void reduce_elements(
    Reduction reduction, DType dtype, std::byte* target, std::span<const std::byte* const> arrays, std::size_t count);

} // namespace tieshard

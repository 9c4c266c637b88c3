// tieshard/core/io/init_slice.h
//
// Fills a rank's part of a parameter that no file holds, equally for every number of ranks and every dimension.
//
// Flow:   plan/read_plan.h (InitSlice) -> local_shards -> [this] -> memory that the caller owns
// Source: Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011); Box-Muller.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tieshard/core/plan/read_plan.h"

namespace tieshard {

/// Ten rounds of Philox4x32: four random words for a counter, by a key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// Fills `target`, the slice row-major in `dtype`, a wide float. The value of an element hangs on the rule and its
/// seed, on the parameter's name, and on the element's index in the whole parameter; on nothing else.
/// @throws UsageError not-convertible
void fill_slice(const InitSlice& slice, std::byte* target, DType dtype);

} // namespace tieshard

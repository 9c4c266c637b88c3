// tieshard/core/doctor/tensor_diff.h
//
// Where two stored tensors of one shape differ, how often, and by how much.
//
// Flow: checkpoint_diff -> [this] -> base/file.h, io/convert.h

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tieshard/core/base/dtype.h"

namespace tieshard {

/// A difference of elements.
struct TensorDifference {
  std::uint64_t first = 0;         ///< index of the first such element, in row-major order
  std::uint64_t count = 0;         ///< elements that differ; of packed dtypes bytes
  std::optional<double> largest{}; ///< absolute difference, where both are numbers and no NaN or infinity is in it
  std::uint64_t zero_signs = 0;    ///< of `count`: 0 against -0
  std::uint64_t nan_bits = 0;      ///< of `count`: a NaN against a NaN of other bits
  std::uint64_t not_finite = 0;    ///< of `count`: a NaN or an infinity against another value
};

/// Whether elements of these dtypes have values to compare: equal dtypes, or two floats of 8 bits and more.
bool comparable(DType first, DType second);

/// Of `first` and `second`, bytes of as many elements: of one dtype compared bit by bit, else by value, a NaN being
/// equal to a NaN. Pre: comparable(first_dtype, second_dtype)
std::optional<TensorDifference> compare_elements(std::span<const std::byte> first,
                                                 DType first_dtype,
                                                 std::span<const std::byte> second,
                                                 DType second_dtype);

/// Both of one tensor, `later` being of elements that lie `offset` behind the first.
void add(TensorDifference& sum, const TensorDifference& later, std::uint64_t offset);

} // namespace tieshard

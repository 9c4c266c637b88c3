// tieshard/core/ties/stored_copies.h
//
// Compares two stored tensors block by block, to tell a tie that is stored twice from two weights.
//
// Flow: tie_registry.cpp -> [this] -> base/file.h

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tieshard/core/checkpoint/checkpoint.h"

namespace tieshard {

/// Where two tensors of one shape differ first.
struct StoredDifference {
  Shape index;        ///< of the element, one entry a dimension
  std::string first;  ///< its value in the first tensor: a number, or hexadecimal bytes when it is no wide float
  std::string second; ///< its value in the second tensor
};

/// The first element in row-major order at which two stored tensors differ; nothing when they are equal.
///
/// Tensors of one dtype are compared byte by byte. F16, BF16, F32 and F64 are compared by value across dtypes, a NaN
/// being equal to a NaN. Other pairs of dtypes differ at their first element. Holds two blocks of at most 2 MiB.
/// Pre: equal shapes. @throws PeerError io-failed
std::optional<StoredDifference> first_difference(const Checkpoint& checkpoint,
                                                 const StoredTensor& first,
                                                 const StoredTensor& second);

} // namespace tieshard

// tieshard/core/plan/strided_range.h
//
// A rank's part of a row-major tensor as bytes: rows of equal length at equal distance.
//
// Flow: read_plan, runtime/state/hf_export -> [this] -> io/reader.h, io/slice_writer.h

#pragma once

#include <cstdint>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/shape.h"
#include "tieshard/core/plan/shard_spec.h"

namespace tieshard {

/// `rows` runs of `row_bytes` bytes; the first begins `first` bytes after the tensor's first byte, each next one
/// `stride` bytes after the one before. Rows that touch are joined into one.
struct StridedRange {
  std::uint64_t first = 0;
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t stride = 0;

  std::uint64_t bytes() const noexcept {
    return rows * row_bytes;
  }
  bool contiguous() const noexcept {
    return rows <= 1;
  }
  friend bool operator==(const StridedRange&, const StridedRange&) = default;
};

/// Bytes of the slice `range` of dimension `dim` of a tensor; `dim` -1 means the whole tensor.
/// @throws UsageError bad-slice when dim or range lie outside the shape, or packed elements would be cut in a byte
StridedRange strided_range(const Shape& shape, DType dtype, int dim, ChunkRange range);

} // namespace tieshard

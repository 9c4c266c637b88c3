#include "tieshard/core/io/decode_fp8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/stored_window.h"

namespace tieshard {
namespace {

constexpr std::int64_t kRun = 1024; ///< elements whose float32 values stay in the innermost cache

std::int64_t blocks(std::int64_t size, std::int64_t block) {
  return (size + block - 1) / block;
}

/// The scales of a piece, as float32.
class Scales {
 public:
  Scales(const Checkpoint& checkpoint, const ScaleRead& scale, const SliceMatrices& slice, const DecodePiece& piece)
      : block_(scale.block) {
    const std::int64_t grid_rows = blocks(slice.whole_rows, block_.rows);
    const std::int64_t grid_columns = blocks(slice.whole_columns, block_.columns);
    const bool one_grid = numel(scale.shape) == grid_rows * grid_columns; // else one for each matrix
    first_row_ = piece.row / block_.rows;
    first_column_ = piece.column / block_.columns;
    const std::int64_t rows = blocks(piece.row + piece.rows, block_.rows) - first_row_;
    columns_ = blocks(piece.column + piece.columns, block_.columns) - first_column_;
    const std::uint64_t item = static_cast<std::uint64_t>(bits(scale.dtype)) / 8;
    const std::int64_t grid_row = (one_grid ? 0 : slice.whole_lead(piece.lead) * grid_rows) + first_row_;
    const FileRows stored{
        .first = scale.offset + static_cast<std::uint64_t>(grid_row * grid_columns + first_column_) * item,
        .rows = static_cast<std::uint64_t>(rows),
        .row_bytes = static_cast<std::uint64_t>(columns_) * item,
        .stride = static_cast<std::uint64_t>(grid_columns) * item};
    std::vector<std::byte> bytes(stored.buffer_bytes(false));
    asked_ = stored.read(checkpoint.files()[scale.file].file(), false, bytes.data());
    values_.resize(static_cast<std::size_t>(rows * columns_));
    if (scale.dtype == DType::kU8) { // an exponent without a NaN: 2^(byte - 127)
      std::ranges::transform(bytes, values_.begin(), [](std::byte byte) {
        return static_cast<float>(std::ldexp(1.0, std::to_integer<int>(byte) - 127));
      });
    } else {
      convert(bytes.data(), scale.dtype, reinterpret_cast<std::byte*>(values_.data()), DType::kF32, values_.size());
    }
  }

  /// Multiplies `count` values that begin at an element of the whole matrix.
  void apply(std::int64_t row, std::int64_t column, float* values, std::int64_t count) const {
    const std::int64_t grid_row = (row / block_.rows - first_row_) * columns_;
    while (count > 0) {
      const std::int64_t block = column / block_.columns;
      const std::int64_t run = std::min(count, (block + 1) * block_.columns - column);
      const float scale = values_[static_cast<std::size_t>(grid_row + block - first_column_)];
      multiply(values, scale, run);
      values += run;
      column += run;
      count -= run;
    }
  }

  std::uint64_t asked() const {
    return asked_;
  }

 private:
  static void multiply(float* values, float scale, std::int64_t count) {
    constexpr std::int64_t kStep = 16; // a fixed length becomes vector code
    std::int64_t done = 0;
    for (; done + kStep <= count; done += kStep) {
      for (std::int64_t i = 0; i < kStep; ++i) {
        values[done + i] *= scale;
      }
    }
    for (; done < count; ++done) {
      values[done] *= scale;
    }
  }

  ScaleBlock block_;
  std::int64_t first_row_ = 0;
  std::int64_t first_column_ = 0;
  std::int64_t columns_ = 0;
  std::uint64_t asked_ = 0;
  std::vector<float> values_;
};

} // namespace

std::uint64_t decode_fp8(const Checkpoint& checkpoint,
                         const SliceRead& read,
                         const DecodePiece& piece,
                         std::byte* target,
                         DType target_dtype,
                         std::vector<std::byte>& buffer) {
  const SliceMatrices slice(read);
  const std::size_t out_item = static_cast<std::size_t>(bits(target_dtype)) / 8;
  const Scales scales(checkpoint, read.scale.value(), slice, piece);
  const std::int64_t first_row = slice.whole_lead(piece.lead) * slice.whole_rows + piece.row;
  const FileRows stored{
      .first = read.offset + static_cast<std::uint64_t>(first_row * slice.whole_columns + piece.column),
      .rows = static_cast<std::uint64_t>(piece.rows),
      .row_bytes = static_cast<std::uint64_t>(piece.columns),
      .stride = static_cast<std::uint64_t>(slice.whole_columns)};
  std::byte* const window = grown(buffer, stored.buffer_bytes(piece.read_gaps));
  const std::uint64_t asked = stored.read(checkpoint.files()[read.file].file(), piece.read_gaps, window);
  std::array<float, kRun> values;
  for (std::int64_t row = 0; row < piece.rows; ++row) {
    for (std::int64_t column = 0; column < piece.columns; column += kRun) {
      const std::int64_t count = std::min(kRun, piece.columns - column);
      const std::byte* const source =
          window + static_cast<std::uint64_t>(row) * stored.pitch(piece.read_gaps) + static_cast<std::uint64_t>(column);
      std::byte* const floats = reinterpret_cast<std::byte*>(values.data());
      convert(source, read.stored_dtype, floats, DType::kF32, static_cast<std::size_t>(count));
      scales.apply(piece.row + row, piece.column + column, values.data(), count);
      const std::uint64_t index = slice.local_index(piece.lead, piece.row + row, piece.column + column);
      convert(floats, DType::kF32, target + index * out_item, target_dtype, static_cast<std::size_t>(count));
    }
  }
  return asked + scales.asked();
}

} // namespace tieshard

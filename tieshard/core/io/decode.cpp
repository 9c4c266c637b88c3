#include "tieshard/core/io/decode.h"

#include <algorithm>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/decode_fp8.h"
#include "tieshard/core/io/decode_mxfp4.h"
#include "tieshard/core/io/decode_transposed.h"
#include "tieshard/core/io/stored_window.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kMostBytes = 1 << 20; ///< of a piece: it stays in the cache while it is decoded
constexpr std::uint64_t kLeastBytes = 4096;
constexpr std::uint64_t kGapBytes = 4096; ///< up to which reading on is cheaper than a system call for each row
constexpr std::int64_t kTileRows = 64;    ///< stored rows that become one run of a transposed target

/// The part of a stored matrix that a slice needs, in stored rows and columns.
struct StoredWindow {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
  std::int64_t whole_columns = 0;
  std::uint64_t column_bytes = 0;
};

StoredWindow stored_window(const SliceRead& read, const SliceMatrices& slice) {
  const std::uint64_t item = static_cast<std::uint64_t>(bits(read.stored_dtype)) / 8;
  switch (read.encoding) {
    case Encoding::kMxfp4: {
      const std::int64_t first = slice.row / kMxfp4Group;
      const std::int64_t end = (slice.row + slice.rows + kMxfp4Group - 1) / kMxfp4Group;
      return {slice.column, slice.columns, first, end - first, slice.whole_rows / kMxfp4Group, kMxfp4BlockBytes};
    }
    case Encoding::kTransposed:
      return {slice.column, slice.columns, slice.row, slice.rows, slice.whole_rows, item};
    case Encoding::kFp8:
    case Encoding::kPlain:
      break;
  }
  return {slice.row, slice.rows, slice.column, slice.columns, slice.whole_columns, item};
}

/// How many rows and columns of a window one piece takes.
struct PieceSize {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  bool read_gaps = false;
};

PieceSize piece_size(const StoredWindow& window, std::uint64_t limit) {
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(window.columns) * window.column_bytes;
  const std::uint64_t stride = static_cast<std::uint64_t>(window.whole_columns) * window.column_bytes;
  const std::uint64_t least_rows = static_cast<std::uint64_t>(std::min(window.rows, kTileRows));
  const bool read_gaps = stride > row_bytes && stride - row_bytes <= kGapBytes && limit / stride >= least_rows;
  const std::uint64_t pitch = read_gaps ? stride : row_bytes;
  if (limit / pitch >= least_rows) {
    const std::int64_t fitting =
        static_cast<std::int64_t>(std::min(limit / pitch, static_cast<std::uint64_t>(window.rows)));
    const std::int64_t rows = fitting > kTileRows ? fitting / kTileRows * kTileRows : fitting;
    return {.rows = rows, .columns = window.columns, .read_gaps = read_gaps};
  }
  const std::int64_t columns = static_cast<std::int64_t>(limit / least_rows / window.column_bytes);
  return {.rows = static_cast<std::int64_t>(least_rows),
          .columns = std::clamp<std::int64_t>(columns, 1, window.columns)};
}

} // namespace

std::vector<DecodePiece> cut_encoded(const SliceRead& read, std::uint64_t buffer_bytes) {
  std::vector<DecodePiece> pieces;
  const SliceMatrices slice(read);
  const StoredWindow window = stored_window(read, slice);
  if (slice.leads == 0 || window.rows == 0 || window.columns == 0) {
    return pieces; // a rank may hold nothing of a tensor
  }
  const PieceSize size = piece_size(window, std::clamp(buffer_bytes, kLeastBytes, kMostBytes));
  for (std::int64_t lead = 0; lead < slice.leads; ++lead) {
    for (std::int64_t row = 0; row < window.rows; row += size.rows) {
      for (std::int64_t column = 0; column < window.columns; column += size.columns) {
        pieces.push_back({.lead = lead,
                          .row = window.row + row,
                          .rows = std::min(size.rows, window.rows - row),
                          .column = window.column + column,
                          .columns = std::min(size.columns, window.columns - column),
                          .read_gaps = size.read_gaps});
      }
    }
  }
  return pieces;
}

std::uint64_t decode_piece(const Checkpoint& checkpoint,
                           const SliceRead& read,
                           const DecodePiece& piece,
                           std::byte* target,
                           DType target_dtype,
                           std::vector<std::byte>& buffer) {
  if (!is_wide_float(target_dtype)) {
    throw UsageError({.code = Code::kNotConvertible,
                      .what = "no conversion between two dtypes",
                      .where = read.fqn,
                      .why = concat("expected a target of F16, BF16, F32 or F64, got ", name(target_dtype)),
                      .fix = "decode into one of these four"});
  }
  switch (read.encoding) {
    case Encoding::kMxfp4:
      return decode_mxfp4(checkpoint, read, piece, target, target_dtype, buffer);
    case Encoding::kFp8:
      return decode_fp8(checkpoint, read, piece, target, target_dtype, buffer);
    case Encoding::kTransposed:
      return decode_transposed(checkpoint, read, piece, target, target_dtype, buffer);
    case Encoding::kPlain:
      break;
  }
  throw InternalError(
      {.code = Code::kBug, .what = "a plain slice is given to the decoders", .where = read.fqn, .fix = "report this"});
}

std::uint64_t read_encoded(const Checkpoint& checkpoint,
                           const SliceRead& read,
                           std::byte* target,
                           DType target_dtype,
                           std::uint64_t buffer_bytes) {
  std::vector<std::byte> buffer;
  std::uint64_t asked = 0;
  for (const DecodePiece& piece : cut_encoded(read, buffer_bytes)) {
    asked += decode_piece(checkpoint, read, piece, target, target_dtype, buffer);
  }
  return asked;
}

} // namespace tieshard

// tieshard/core/io/read_chunk.h
//
// Slices cut into pieces of work for threads: small enough to be shared and to bound the memory, large enough that a
// system call does not show.
//
// Flow: plan/read_plan.h -> [this] -> reader

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tieshard/core/io/decode.h"
#include "tieshard/core/io/reader.h"

namespace tieshard {

/// Consecutive whole rows of a slice, or (rows == 1) a piece of one row; of an encoded slice a piece of its decoder.
struct ReadChunk {
  enum class Way {
    kDecode, ///< by decode_piece
    kTouch,  ///< the target is a mapping of the slice: its pages are entered
    kBlock,  ///< rows and the gaps between them are read into a buffer at once
    kRows,   ///< each row is read by itself
  };
  std::size_t slice = 0; ///< index into the reads
  Way way = Way::kRows;
  std::uint64_t first_row = 0;
  std::uint64_t rows = 1;
  std::uint64_t begin = 0;     ///< byte within the row
  std::uint64_t row_bytes = 0; ///< of each row, from `begin` on; of kDecode: its share of the slice's bytes
  DecodePiece piece{};         ///< of kDecode

  /// Of the slice, in its stored dtype.
  std::uint64_t bytes() const {
    return rows * row_bytes;
  }

  /// From the first row's first byte to the last row's last one in the file. Not of kDecode.
  std::uint64_t extent(const StridedRange& range) const {
    return rows == 0 ? 0 : (rows - 1) * range.stride + row_bytes;
  }

  /// The slice's bytes before this chunk, in its stored dtype.
  std::uint64_t before(const StridedRange& range) const {
    return first_row * range.row_bytes + begin;
  }

  /// Place of the first row's first byte in the file.
  std::uint64_t source(const SliceRead& read) const {
    return read.offset + read.range.first + first_row * read.range.stride + begin;
  }
};

/// Bytes that each thread may hold, of the buffer that they have together: 4 KiB to 4 MiB, whole pages.
std::uint64_t buffer_of_thread(const ReaderOptions& options);

/// Appends the chunks of slice `slice`, in the order of the file; no chunk needs more than `limit` bytes of
/// buffer.
void cut_slice(const SliceRead& read,
               const ReadTarget& target,
               std::size_t slice,
               std::uint64_t limit,
               std::vector<ReadChunk>& chunks);

} // namespace tieshard

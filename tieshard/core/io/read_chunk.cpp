#include "tieshard/core/io/read_chunk.h"

#include <algorithm>

namespace tieshard {
namespace {

using Way = ReadChunk::Way;

constexpr std::uint64_t kSmallestBuffer = 4096; ///< a multiple of every element size
constexpr std::uint64_t kLargestBuffer = 4 << 20;

/// What is read into a buffer should still be in the cache when it is copied or converted out of it.
constexpr std::uint64_t kLargestRead = 512 << 10;

/// Pages of a mapped slice that are entered at once.
constexpr std::uint64_t kTouchBytes = 4 << 20;

/// A gap between two rows up to which reading on is cheaper than a system call for each row.
constexpr std::uint64_t kReadGap = 4096;

struct Cut {
  Way way = Way::kRows;
  std::uint64_t pitch = 0; ///< bytes that a row takes, in the buffer if there is one
  std::uint64_t most = 0;  ///< bytes that a chunk may take
};

Cut choose(const SliceRead& read, const ReadTarget& target, std::uint64_t limit) {
  const StridedRange& range = read.range;
  if (target.mapping != nullptr) {
    return {Way::kTouch, range.row_bytes, kTouchBytes};
  }
  const std::uint64_t gap = range.rows > 1 ? range.stride - range.row_bytes : 0;
  const std::uint64_t buffered = std::min(limit, kLargestRead);
  if (range.rows > 1 && gap <= kReadGap && range.stride <= buffered) {
    return {Way::kBlock, range.stride, buffered};
  }
  const bool straight = read.stored_dtype == target.dtype;
  return {Way::kRows, range.row_bytes, straight ? kLargestBuffer : buffered};
}

void cut_into_pieces(const SliceRead& read, std::size_t slice, std::uint64_t limit, std::vector<ReadChunk>& chunks) {
  const std::vector<DecodePiece> pieces = cut_encoded(read, limit);
  const std::uint64_t bytes = read.stored_bytes();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::uint64_t share = bytes * (i + 1) / pieces.size() - bytes * i / pieces.size();
    chunks.push_back({.slice = slice, .way = Way::kDecode, .row_bytes = share, .piece = pieces[i]});
  }
}

} // namespace

std::uint64_t buffer_of_thread(const ReaderOptions& options) {
  const auto threads = static_cast<std::uint64_t>(std::max(options.threads, 1));
  const std::uint64_t share = options.buffer_bytes / threads / kSmallestBuffer * kSmallestBuffer;
  return std::clamp(share, kSmallestBuffer, kLargestBuffer);
}

void cut_slice(const SliceRead& read,
               const ReadTarget& target,
               std::size_t slice,
               std::uint64_t limit,
               std::vector<ReadChunk>& chunks) {
  if (read.encoding != Encoding::kPlain) {
    cut_into_pieces(read, slice, limit, chunks);
    return;
  }
  const StridedRange& range = read.range;
  if (range.bytes() == 0) {
    return; // a rank may hold nothing of a tensor
  }
  const auto [way, pitch, most] = choose(read, target, limit);
  if (pitch <= most) {
    const std::uint64_t rows_at_once = most / pitch;
    for (std::uint64_t row = 0; row < range.rows; row += rows_at_once) {
      chunks.push_back({.slice = slice,
                        .way = way,
                        .first_row = row,
                        .rows = std::min(rows_at_once, range.rows - row),
                        .begin = 0,
                        .row_bytes = range.row_bytes});
    }
    return;
  }
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    for (std::uint64_t begin = 0; begin < range.row_bytes; begin += most) {
      chunks.push_back({.slice = slice,
                        .way = way,
                        .first_row = row,
                        .rows = 1,
                        .begin = begin,
                        .row_bytes = std::min(most, range.row_bytes - begin)});
    }
  }
}

} // namespace tieshard

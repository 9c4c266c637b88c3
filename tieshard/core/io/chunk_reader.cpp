#include "tieshard/core/io/chunk_reader.h"

#include <algorithm>

#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/finite.h"

namespace tieshard {
namespace {

using Way = ReadChunk::Way;

/// Bytes of a target that are filled before they are looked at: they are in the cache then.
constexpr std::uint64_t kInCache = 128 << 10;

/// What `stored_bytes` become in the target's dtype.
std::uint64_t in_target(std::uint64_t stored_bytes, DType stored, DType target) {
  return stored_bytes * static_cast<std::uint64_t>(bits(target)) / static_cast<std::uint64_t>(bits(stored));
}

std::uint64_t elements_in(std::uint64_t bytes, DType dtype) {
  return bytes * 8 / static_cast<std::uint64_t>(bits(dtype));
}

} // namespace

ChunkOutcome ChunkReader::read(const ReadChunk& chunk) {
  not_finite_.reset();
  const std::uint64_t asked = fetch(chunk);
  return {.asked = asked, .not_finite = not_finite_};
}

std::uint64_t ChunkReader::fetch(const ReadChunk& chunk) {
  const SliceRead& slice = reads_[chunk.slice];
  const ReadTarget& target = targets_[chunk.slice];
  if (chunk.way == Way::kDecode) {
    return decode_piece(checkpoint_, slice, chunk.piece, target.data, target.dtype, buffer_);
  }
  const std::uint64_t extent = chunk.extent(slice.range);
  switch (chunk.way) {
    case Way::kTouch:
      target.mapping->populate(chunk.before(slice.range), extent);
      check(chunk, 0, extent);
      target.mapping->require_intact();
      return 0;
    case Way::kBlock:
      return read_block(chunk);
    case Way::kRows:
    case Way::kDecode:
      break;
  }
  return read_rows(chunk);
}

std::uint64_t ChunkReader::read_block(const ReadChunk& chunk) {
  const SliceRead& slice = reads_[chunk.slice];
  const std::uint64_t extent = chunk.extent(slice.range);
  std::byte* const block = buffer(extent);
  checkpoint_.files()[slice.file].file().read_at(chunk.source(slice), std::span(block, extent));
  lay_rows(chunk, block, slice.range.stride);
  return extent;
}

/// Straight into their place, or by way of a buffer where they are converted.
std::uint64_t ChunkReader::read_rows(const ReadChunk& chunk) {
  const SliceRead& slice = reads_[chunk.slice];
  const File& file = checkpoint_.files()[slice.file].file();
  const bool straight = slice.stored_dtype == targets_[chunk.slice].dtype;
  std::byte* const landing = straight ? place(chunk) : buffer(chunk.bytes());
  for (std::uint64_t row = 0; row < chunk.rows; ++row) {
    file.read_at(chunk.source(slice) + row * slice.range.stride,
                 std::span(landing + row * chunk.row_bytes, chunk.row_bytes));
  }
  if (straight) {
    check(chunk, 0, chunk.bytes());
  } else {
    lay_rows(chunk, landing, chunk.row_bytes);
  }
  return chunk.bytes();
}

/// Converts the rows of `block`, `stride` bytes apart, to their place, and looks at what is there after each few.
void ChunkReader::lay_rows(const ReadChunk& chunk, const std::byte* block, std::uint64_t stride) {
  const DType stored = reads_[chunk.slice].stored_dtype;
  const DType wanted = targets_[chunk.slice].dtype;
  std::byte* const out = place(chunk);
  const std::uint64_t piece = std::min(chunk.row_bytes, kInCache);
  std::uint64_t laid = 0;
  std::uint64_t checked = 0;
  for (std::uint64_t row = 0; row < chunk.rows; ++row) {
    for (std::uint64_t at = 0; at < chunk.row_bytes; at += piece) {
      const std::uint64_t bytes = std::min(piece, chunk.row_bytes - at);
      convert(block + row * stride + at, stored, out + laid, wanted, elements_in(bytes, stored));
      laid += in_target(bytes, stored, wanted);
      if (laid - checked >= kInCache) {
        check(chunk, checked, laid - checked);
        checked = laid;
      }
    }
  }
  check(chunk, checked, laid - checked);
}

std::byte* ChunkReader::place(const ReadChunk& chunk) const {
  const SliceRead& slice = reads_[chunk.slice];
  const ReadTarget& target = targets_[chunk.slice];
  return target.data + in_target(chunk.before(slice.range), slice.stored_dtype, target.dtype);
}

std::optional<std::uint64_t> ChunkReader::find_not_finite(std::size_t slice) const {
  const ReadTarget& target = targets_[slice];
  const auto count = static_cast<std::uint64_t>(numel(reads_[slice].local_shape));
  if (!check_values_ || !is_wide_float(target.dtype)) {
    return std::nullopt;
  }
  const std::uint64_t found = first_not_finite(target.data, target.dtype, count);
  return found < count ? std::optional(found) : std::nullopt;
}

/// Looks at `bytes` of the target, from `first_byte` of the chunk's place on.
void ChunkReader::check(const ReadChunk& chunk, std::uint64_t first_byte, std::uint64_t bytes) {
  const DType dtype = targets_[chunk.slice].dtype;
  if (!check_values_ || not_finite_ || bytes == 0 || !is_wide_float(dtype)) {
    return;
  }
  const std::byte* const begin = place(chunk) + first_byte;
  const std::uint64_t count = elements_in(bytes, dtype);
  const std::uint64_t found = first_not_finite(begin, dtype, count);
  if (found < count) {
    not_finite_ = elements_in(static_cast<std::uint64_t>(begin - targets_[chunk.slice].data), dtype) + found;
  }
}

std::byte* ChunkReader::buffer(std::uint64_t bytes) {
  if (buffer_.size() < bytes) {
    buffer_.resize(bytes);
  }
  return buffer_.data();
}

} // namespace tieshard

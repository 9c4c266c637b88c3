#include "tieshard/core/io/slice_writer.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/convert.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kBufferBytes = 4 << 20; ///< a multiple of every element size

void require_convertible(DType from, DType to, const std::string& where) {
  if (!convertible(from, to)) {
    throw UsageError({.code = Code::kNotConvertible,
                      .what = "no conversion between two dtypes",
                      .where = where,
                      .why = concat("only F16, BF16, F32 and F64 convert, got ", name(from), " to ", name(to)),
                      .fix = "write the tensor in the dtype that it has in memory"});
  }
}

/// Writes each row where it belongs, straight from memory.
void write_rows(const File& file, std::uint64_t begin, const StridedRange& range, const std::byte* data) {
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    file.write_at(begin + row * range.stride, std::span(data + row * range.row_bytes, range.row_bytes));
  }
}

} // namespace

void write_slice(const File& file,
                 std::uint64_t offset,
                 const StridedRange& range,
                 DType stored_dtype,
                 const std::byte* data,
                 DType memory_dtype) {
  require_convertible(memory_dtype, stored_dtype, file.path().string());
  if (range.bytes() == 0) {
    return;
  }
  const std::uint64_t begin = offset + range.first;
  if (memory_dtype == stored_dtype) {
    write_rows(file, begin, range, data);
    return;
  }
  const std::uint64_t stored_size = static_cast<std::uint64_t>(bits(stored_dtype)) / 8;
  const std::uint64_t memory_size = static_cast<std::uint64_t>(bits(memory_dtype)) / 8;
  std::vector<std::byte> buffer(std::min(kBufferBytes, range.bytes()));
  // Rows that fit are converted many at a time; a longer row goes out in pieces.
  const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, buffer.size() / range.row_bytes);
  const std::uint64_t piece_bytes = std::min<std::uint64_t>(range.row_bytes, buffer.size());
  const std::byte* source = data;
  for (std::uint64_t row = 0; row < range.rows; row += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, range.rows - row);
    for (std::uint64_t at = 0; at < range.row_bytes; at += piece_bytes) {
      const std::uint64_t row_bytes = std::min(piece_bytes, range.row_bytes - at);
      const std::uint64_t elements = rows * row_bytes / stored_size;
      convert(source, memory_dtype, buffer.data(), stored_dtype, elements);
      source += elements * memory_size;
      write_rows(file,
                 begin + row * range.stride + at,
                 {.first = 0, .rows = rows, .row_bytes = row_bytes, .stride = range.stride},
                 buffer.data());
    }
  }
}

} // namespace tieshard

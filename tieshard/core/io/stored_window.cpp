#include "tieshard/core/io/stored_window.h"

#include <span>

namespace tieshard {
namespace {

std::int64_t product(const Shape& shape, std::size_t begin, std::size_t end) {
  std::int64_t result = 1;
  for (std::size_t dim = begin; dim < end; ++dim) {
    result *= shape[dim];
  }
  return result;
}

} // namespace

SliceMatrices::SliceMatrices(const SliceRead& read) {
  const Shape& shape = read.shape;
  const std::size_t leading = shape.size() < 2 ? 0 : shape.size() - 2;
  whole_rows = shape.size() < 2 ? 1 : shape[leading];
  whole_columns = shape.empty() ? 1 : shape.back();
  rows = whole_rows;
  columns = whole_columns;
  leads = product(shape, 0, leading);
  if (read.dim < 0) {
    return;
  }
  const std::size_t dim = static_cast<std::size_t>(read.dim);
  if (dim + 1 == shape.size()) {
    column = read.chunk.offset;
    columns = read.chunk.size;
  } else if (dim == leading) {
    row = read.chunk.offset;
    rows = read.chunk.size;
  } else {
    lead_size_ = read.chunk.size;
    lead_whole_ = shape[dim];
    lead_offset_ = read.chunk.offset;
    lead_inner_ = product(shape, dim + 1, leading);
    leads = product(shape, 0, dim) * lead_size_ * lead_inner_;
  }
}

std::int64_t SliceMatrices::whole_lead(std::int64_t lead) const {
  const std::int64_t inner = lead % lead_inner_;
  const std::int64_t at = lead / lead_inner_;
  return (at / lead_size_ * lead_whole_ + lead_offset_ + at % lead_size_) * lead_inner_ + inner;
}

std::uint64_t SliceMatrices::local_index(std::int64_t lead, std::int64_t whole_row, std::int64_t whole_column) const {
  return static_cast<std::uint64_t>((lead * rows + whole_row - row) * columns + whole_column - column);
}

std::uint64_t FileRows::buffer_bytes(bool read_gaps) const {
  return rows == 0 ? 0 : (rows - 1) * pitch(read_gaps) + row_bytes;
}

std::uint64_t FileRows::read(const File& file, bool read_gaps, std::byte* buffer) const {
  if (rows == 0 || row_bytes == 0) {
    return 0;
  }
  if (read_gaps || stride == row_bytes) {
    const std::uint64_t asked = buffer_bytes(read_gaps);
    file.read_at(first, std::span(buffer, asked));
    return asked;
  }
  for (std::uint64_t row = 0; row < rows; ++row) {
    file.read_at(first + row * stride, std::span(buffer + row * row_bytes, row_bytes));
  }
  return rows * row_bytes;
}

std::byte* grown(std::vector<std::byte>& buffer, std::uint64_t bytes) {
  if (buffer.size() < bytes) {
    buffer.resize(bytes);
  }
  return buffer.data();
}

} // namespace tieshard

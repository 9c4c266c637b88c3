#include "tieshard/core/plan/strided_range.h"

#include <string>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw UsageError({.code = Code::kBadSlice,
                    .what = what,
                    .why = why,
                    .fix = "ask for a dimension and a range that the tensor has, cut at whole bytes"});
}

/// Product of the sizes of dimensions [begin, end). The whole shape has been checked, so it fits.
std::uint64_t product(const Shape& shape, std::size_t begin, std::size_t end) {
  std::uint64_t result = 1;
  for (std::size_t dim = begin; dim < end; ++dim) {
    result *= static_cast<std::uint64_t>(shape[dim]);
  }
  return result;
}

std::uint64_t whole_bytes(std::uint64_t elements, DType dtype) {
  const std::uint64_t element_bits = static_cast<std::uint64_t>(bits(dtype));
  if (element_bits % 8 == 0) {
    return elements * (element_bits / 8);
  }
  // Packed elements: a multiple of 8 elements always fills whole bytes, so only the rest decides.
  const std::uint64_t rest_bits = elements % 8 * element_bits;
  if (rest_bits % 8 != 0) {
    refuse("a slice would cut packed elements inside a byte",
           concat("expected a whole number of bytes, got ", elements, " elements of ", element_bits, " bits"));
  }
  return elements / 8 * element_bits + rest_bits / 8;
}

} // namespace

StridedRange strided_range(const Shape& shape, DType dtype, int dim, ChunkRange range) {
  const auto total = checked_bytes(shape, dtype);
  if (!total) {
    refuse("a slice of a tensor whose size is not a number of bytes",
           concat("shape ", to_string(shape), " of ", name(dtype), " overflows or does not fill whole bytes"));
  }
  const int rank = static_cast<int>(shape.size());
  if (dim < -1 || dim >= rank) {
    refuse("a slice along a dimension that the tensor does not have",
           concat("shape ", to_string(shape), " has ", rank, " dimensions, got dimension ", dim));
  }
  if (dim == -1) {
    return *total == 0 ? StridedRange{} : StridedRange{0, 1, *total, *total};
  }
  const std::size_t at = static_cast<std::size_t>(dim);
  if (range.offset < 0 || range.size < 0 || range.offset > shape[at] || range.size > shape[at] - range.offset) {
    refuse("a slice lies outside its tensor",
           concat("dimension ",
                  dim,
                  " of ",
                  to_string(shape),
                  " has ",
                  shape[at],
                  " indices, got ",
                  range.size,
                  " from index ",
                  range.offset,
                  " on"));
  }
  if (*total == 0 || range.size == 0) {
    return {};
  }
  const std::uint64_t rows = product(shape, 0, at);
  const std::uint64_t inner = product(shape, at + 1, shape.size());
  const std::uint64_t first = whole_bytes(static_cast<std::uint64_t>(range.offset) * inner, dtype);
  const std::uint64_t row_bytes = whole_bytes(static_cast<std::uint64_t>(range.size) * inner, dtype);
  if (rows == 1) {
    return {first, 1, row_bytes, row_bytes};
  }
  if (range.size == shape[at]) {
    return {0, 1, *total, *total};
  }
  return {first, rows, row_bytes, whole_bytes(static_cast<std::uint64_t>(shape[at]) * inner, dtype)};
}

} // namespace tieshard

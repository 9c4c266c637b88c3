#include "tieshard/core/ties/stored_copies.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <optional>
#include <span>
#include <sstream>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/float_formats.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kBlockElements = 256 * 1024; ///< a multiple of 8, so that packed elements end on a byte

template <typename Format>
double decode_at(std::span<const std::byte> bytes, std::size_t element) {
  typename Format::Bits bits;
  std::memcpy(&bits, bytes.data() + element * sizeof(bits), sizeof(bits));
  return static_cast<double>(Format::decode(bits));
}

/// Pre: is_wide_float(dtype)
double value_at(std::span<const std::byte> bytes, DType dtype, std::size_t element) {
  switch (dtype) {
    case DType::kF16:
      return decode_at<Float16Format>(bytes, element);
    case DType::kBF16:
      return decode_at<BFloat16Format>(bytes, element);
    case DType::kF32:
      return decode_at<Float32Format>(bytes, element);
    default:
      return decode_at<Float64Format>(bytes, element);
  }
}

std::string text_at(std::span<const std::byte> bytes, DType dtype, std::size_t element) {
  std::ostringstream out;
  if (is_wide_float(dtype)) {
    out << std::setprecision(9) << value_at(bytes, dtype, element);
    return out.str();
  }
  const std::size_t element_bits = static_cast<std::size_t>(bits(dtype));
  const std::size_t begin = element * element_bits / 8;
  const std::size_t end = ((element + 1) * element_bits + 7) / 8;
  out << name(dtype) << " 0x" << std::hex << std::setfill('0');
  for (std::size_t i = end; i > begin; --i) { // little-endian in the file
    out << std::setw(2) << std::to_integer<int>(bytes[i - 1]);
  }
  return out.str();
}

/// One block of a stored tensor.
class BlockReader {
 public:
  BlockReader(const Checkpoint& checkpoint, const StoredTensor& tensor)
      : file_(checkpoint.files()[tensor.file].file()), tensor_(tensor) {}

  std::span<const std::byte> read(std::uint64_t element, std::uint64_t count) {
    block_.resize(bytes_of(count));
    file_.read_at(place_of(element), block_);
    return block_;
  }

  /// Whether only holes of a sparse file lie there, which read as zeros.
  bool is_hole(std::uint64_t element, std::uint64_t count) const {
    const std::optional<FileExtent> stored = file_.next_stored(place_of(element));
    return !stored || stored->begin >= place_of(element) + bytes_of(count);
  }

  /// Whether both are of the same bytes of one file, under whatever names.
  bool is_same_place(const BlockReader& other) const {
    return file_.identity().inode != 0 && file_.identity() == other.file_.identity() &&
           tensor_.offset == other.tensor_.offset && tensor_.dtype == other.tensor_.dtype;
  }

 private:
  std::uint64_t bytes_of(std::uint64_t count) const {
    return (count * static_cast<std::uint64_t>(bits(tensor_.dtype)) + 7) / 8;
  }
  std::uint64_t place_of(std::uint64_t element) const {
    return tensor_.offset + element / 8 * static_cast<std::uint64_t>(bits(tensor_.dtype));
  }

  const File& file_;
  const StoredTensor& tensor_;
  std::vector<std::byte> block_;
};

/// First differing element of two blocks, or `count`.
std::size_t first_difference_in(std::span<const std::byte> first,
                                DType first_dtype,
                                std::span<const std::byte> second,
                                DType second_dtype,
                                std::size_t count) {
  if (first_dtype == second_dtype) {
    if (std::memcmp(first.data(), second.data(), first.size()) == 0) {
      return count;
    }
    const auto at = std::ranges::mismatch(first, second).in1 - first.begin();
    return static_cast<std::size_t>(at) * 8 / static_cast<std::size_t>(bits(first_dtype));
  }
  if (!is_wide_float(first_dtype) || !is_wide_float(second_dtype)) {
    return 0;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double a = value_at(first, first_dtype, i);
    const double b = value_at(second, second_dtype, i);
    const bool equal = std::isnan(a) ? std::isnan(b) : (a == b && std::signbit(a) == std::signbit(b));
    if (!equal) {
      return i;
    }
  }
  return count;
}

Shape index_of(std::uint64_t element, const Shape& shape) {
  Shape index(shape.size());
  for (std::size_t dim = shape.size(); dim > 0; --dim) {
    const std::uint64_t size = static_cast<std::uint64_t>(shape[dim - 1]);
    index[dim - 1] = static_cast<std::int64_t>(element % size);
    element /= size;
  }
  return index;
}

} // namespace

std::optional<StoredDifference> first_difference(const Checkpoint& checkpoint,
                                                 const StoredTensor& first,
                                                 const StoredTensor& second) {
  BlockReader first_blocks(checkpoint, first);
  BlockReader second_blocks(checkpoint, second);
  if (first_blocks.is_same_place(second_blocks)) {
    return std::nullopt;
  }
  const bool zeros_are_equal =
      first.dtype == second.dtype || (is_wide_float(first.dtype) && is_wide_float(second.dtype));
  const std::uint64_t total = static_cast<std::uint64_t>(numel(first.shape));
  for (std::uint64_t element = 0; element < total; element += kBlockElements) {
    const std::uint64_t count = std::min(kBlockElements, total - element);
    if (zeros_are_equal && first_blocks.is_hole(element, count) && second_blocks.is_hole(element, count)) {
      continue;
    }
    const auto a = first_blocks.read(element, count);
    const auto b = second_blocks.read(element, count);
    const std::size_t at = first_difference_in(a, first.dtype, b, second.dtype, count);
    if (at < count) {
      return StoredDifference{.index = index_of(element + at, first.shape),
                              .first = text_at(a, first.dtype, at),
                              .second = text_at(b, second.dtype, at)};
    }
  }
  return std::nullopt;
}

} // namespace tieshard

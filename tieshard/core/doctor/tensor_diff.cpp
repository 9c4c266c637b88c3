#include "tieshard/core/doctor/tensor_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tieshard/core/io/convert.h"

namespace tieshard {
namespace {

/// Elements that are converted in one go.
constexpr std::size_t kBlock = 4096;

std::size_t width_of(DType dtype) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(bits(dtype)) / 8);
}

bool is_convertible_float(DType dtype) {
  return convertible(dtype, DType::kF64);
}

/// One block of both as doubles.
class Doubles {
 public:
  const std::vector<double>& of(std::span<const std::byte> bytes, DType dtype, std::size_t count) {
    values_.resize(count);
    convert(bytes.data(), dtype, reinterpret_cast<std::byte*>(values_.data()), DType::kF64, count);
    return values_;
  }

 private:
  std::vector<double> values_;
};

void note(TensorDifference& sum, std::size_t at) {
  sum.first = sum.count == 0 ? at : sum.first;
  ++sum.count;
}

/// Of two floats that differ.
void note(TensorDifference& sum, std::size_t at, double one, double other) {
  note(sum, at);
  if (std::isnan(one) && std::isnan(other)) {
    ++sum.nan_bits;
  } else if (!std::isfinite(one) || !std::isfinite(other)) {
    ++sum.not_finite;
  } else if (one == other) {
    ++sum.zero_signs;
  } else {
    sum.largest = std::max(sum.largest.value_or(0), std::fabs(one - other));
  }
}

template <typename Integer>
double integers_apart(const std::byte* one, const std::byte* other) {
  Integer x;
  Integer y;
  std::memcpy(&x, one, sizeof(x));
  std::memcpy(&y, other, sizeof(y));
  using Unsigned = std::make_unsigned_t<Integer>; // which holds every difference
  return static_cast<double>(static_cast<Unsigned>(x > y ? static_cast<Unsigned>(x) - static_cast<Unsigned>(y)
                                                         : static_cast<Unsigned>(y) - static_cast<Unsigned>(x)));
}

/// The distance of two integers; nothing for a dtype that is none.
std::optional<double> integer_distance(DType dtype, const std::byte* one, const std::byte* other) {
  switch (dtype) {
    case DType::kU8:
      return integers_apart<std::uint8_t>(one, other);
    case DType::kI8:
      return integers_apart<std::int8_t>(one, other);
    case DType::kI16:
      return integers_apart<std::int16_t>(one, other);
    case DType::kU16:
      return integers_apart<std::uint16_t>(one, other);
    case DType::kI32:
      return integers_apart<std::int32_t>(one, other);
    case DType::kU32:
      return integers_apart<std::uint32_t>(one, other);
    case DType::kI64:
      return integers_apart<std::int64_t>(one, other);
    case DType::kU64:
      return integers_apart<std::uint64_t>(one, other);
    default:
      return std::nullopt;
  }
}

void note_bits(TensorDifference& sum, std::size_t at, DType dtype, const std::byte* one, const std::byte* other) {
  note(sum, at);
  if (const auto apart = integer_distance(dtype, one, other)) {
    sum.largest = std::max(sum.largest.value_or(0), *apart);
  }
}

/// Of equal dtypes: bit by bit.
TensorDifference count_bits(std::span<const std::byte> first, std::span<const std::byte> second, DType dtype) {
  const std::size_t width = width_of(dtype);
  const bool numbers = is_convertible_float(dtype);
  TensorDifference sum;
  Doubles a;
  Doubles b;
  for (std::size_t begin = 0; begin < first.size(); begin += kBlock * width) {
    const std::size_t bytes = std::min(kBlock * width, first.size() - begin);
    const auto one = first.subspan(begin, bytes);
    const auto other = second.subspan(begin, bytes);
    if (std::memcmp(one.data(), other.data(), bytes) == 0) {
      continue;
    }
    const std::size_t count = bytes / width;
    const std::vector<double>* x = numbers ? &a.of(one, dtype, count) : nullptr;
    const std::vector<double>* y = numbers ? &b.of(other, dtype, count) : nullptr;
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(one.data() + i * width, other.data() + i * width, width) == 0) {
        continue;
      }
      const std::size_t at = begin / width + i;
      numbers ? note(sum, at, (*x)[i], (*y)[i])
              : note_bits(sum, at, dtype, one.data() + i * width, other.data() + i * width);
    }
  }
  return sum;
}

/// Of two floats: by value.
TensorDifference count_values(std::span<const std::byte> first,
                              DType first_dtype,
                              std::span<const std::byte> second,
                              DType second_dtype) {
  const std::size_t elements = first.size() / width_of(first_dtype);
  TensorDifference sum;
  Doubles a;
  Doubles b;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    const auto& x = a.of(first.subspan(begin * width_of(first_dtype)), first_dtype, count);
    const auto& y = b.of(second.subspan(begin * width_of(second_dtype)), second_dtype, count);
    for (std::size_t i = 0; i < count; ++i) {
      if (x[i] != y[i] && !(std::isnan(x[i]) && std::isnan(y[i]))) {
        note(sum, begin + i, x[i], y[i]);
      }
    }
  }
  return sum;
}

} // namespace

bool comparable(DType first, DType second) {
  return first == second || (is_convertible_float(first) && is_convertible_float(second));
}

std::optional<TensorDifference> compare_elements(std::span<const std::byte> first,
                                                 DType first_dtype,
                                                 std::span<const std::byte> second,
                                                 DType second_dtype) {
  if (first_dtype == second_dtype && (first.empty() || std::memcmp(first.data(), second.data(), first.size()) == 0)) {
    return std::nullopt;
  }
  const TensorDifference sum = first_dtype == second_dtype ? count_bits(first, second, first_dtype)
                                                           : count_values(first, first_dtype, second, second_dtype);
  return sum.count == 0 ? std::nullopt : std::optional(sum);
}

void add(TensorDifference& sum, const TensorDifference& later, std::uint64_t offset) {
  const std::uint64_t first = later.first + offset;
  sum.first = sum.count == 0 ? first : std::min(sum.first, first);
  sum.count += later.count;
  sum.zero_signs += later.zero_signs;
  sum.nan_bits += later.nan_bits;
  sum.not_finite += later.not_finite;
  if (later.largest) {
    sum.largest = std::max(sum.largest.value_or(0), *later.largest);
  }
}

} // namespace tieshard

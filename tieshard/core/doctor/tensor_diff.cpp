#include "tieshard/core/doctor/tensor_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

void note(TensorDifference& sum, std::size_t at, double apart) {
  sum.first = sum.count == 0 ? at : sum.first;
  ++sum.count;
  if (std::isfinite(apart)) {
    sum.largest = std::max(sum.largest.value_or(0), apart);
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
      if (std::memcmp(one.data() + i * width, other.data() + i * width, width) != 0) {
        note(sum, begin / width + i, numbers ? std::fabs((*x)[i] - (*y)[i]) : HUGE_VAL);
      }
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
        note(sum, begin + i, std::fabs(x[i] - y[i]));
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
  if (later.largest) {
    sum.largest = std::max(sum.largest.value_or(0), *later.largest);
  }
}

} // namespace tieshard

#include "tieshard/core/io/finite.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/convert.h"

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using testing::raised;

constexpr DType kWide[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

/// `values` as `dtype`, `shift` bytes behind an aligned address.
std::vector<std::byte> stored_as(const std::vector<double>& values, DType dtype, std::size_t shift) {
  std::vector<std::byte> bytes(shift + values.size() * static_cast<std::size_t>(bits(dtype)) / 8);
  convert(reinterpret_cast<const std::byte*>(values.data()), DType::kF64, bytes.data() + shift, dtype, values.size());
  return bytes;
}

TEST(FirstNotFinite, FindsEveryKindAtEveryPlaceOfEveryDtype) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double odd[] = {infinity, -infinity, std::nan(""), -std::nan("")};
  for (const DType dtype : kWide) {
    for (const std::size_t place : {0U, 1U, 255U, 256U, 257U, 511U, 512U, 599U}) {
      for (const double value : odd) {
        std::vector<double> values(600, -1.5);
        values[place] = value;
        values[599] = infinity; // a later one does not count
        const auto bytes = stored_as(values, dtype, 1);
        EXPECT_EQ(first_not_finite(bytes.data() + 1, dtype, 600), place) << name(dtype) << " " << value;
      }
    }
  }
}

TEST(FirstNotFinite, TakesTheLargestAndTheSmallestValuesForWhatTheyAre) {
  for (const DType dtype : kWide) {
    const double largest = dtype == DType::kF16 ? 65504.0 : 3.3895313892515355e38; // that of BF16
    const auto bytes = stored_as({0.0, -0.0, largest, -largest, 5.9604644775390625e-08, 1.0}, dtype, 0);
    EXPECT_EQ(first_not_finite(bytes.data(), dtype, 6), 6U) << name(dtype);
  }
}

TEST(FirstNotFinite, OfNothingIsNothing) {
  EXPECT_EQ(first_not_finite(nullptr, DType::kBF16, 0), 0U);
}

TEST(FirstNotFinite, IsAskedOfWideFloatsOnly) {
  const std::byte zero{};
  const auto refused = raised<InternalError>([&zero] { first_not_finite(&zero, DType::kU8, 1); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kBug);
}

} // namespace
} // namespace tieshard

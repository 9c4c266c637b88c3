#include "tieshard/core/io/convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using testing::raised;

/// Converts a whole vector; the element types are those of the dtypes in memory.
template <typename To, typename From>
std::vector<To> converted(const std::vector<From>& source, DType from, DType to) {
  std::vector<To> target(source.size());
  convert(reinterpret_cast<const std::byte*>(source.data()),
          from,
          reinterpret_cast<std::byte*>(target.data()),
          to,
          source.size());
  return target;
}

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<std::uint16_t>(i);
  }
  return patterns;
}

/// A format of 16 bits by its definition: sign, exponent and mantissa widths; arithmetic in double, no bit tricks.
struct Format16 {
  DType dtype;
  int mantissa_bits;
  int bias;

  double value(std::uint16_t pattern) const {
    const int exponent_mask = (1 << (15 - mantissa_bits)) - 1;
    const int mantissa = pattern & ((1 << mantissa_bits) - 1);
    const int exponent = (pattern >> mantissa_bits) & exponent_mask;
    const double sign = (pattern & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == exponent_mask) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) {
      return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    }
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }

  /// Rounded to nearest even: the quotient by the unit in the last place, rounded by the standard library.
  std::uint16_t pattern(double value) const {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    const int exponent_mask = (1 << (15 - mantissa_bits)) - 1;
    const std::uint16_t infinity = static_cast<std::uint16_t>(exponent_mask << mantissa_bits);
    if (std::isinf(magnitude)) {
      return sign | infinity;
    }
    int exponent = magnitude == 0.0 ? -2000 : std::ilogb(magnitude);
    exponent = std::max(exponent, 1 - bias);
    const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    const std::uint64_t pattern =
        (static_cast<std::uint64_t>(exponent + bias - 1) << mantissa_bits) + static_cast<std::uint64_t>(steps);
    return sign | static_cast<std::uint16_t>(std::min<std::uint64_t>(pattern, infinity));
  }
};

constexpr Format16 kFormats[] = {{DType::kF16, 10, 15}, {DType::kBF16, 7, 127}};

TEST(Convert, GivesEveryPatternOf16BitsItsValue) {
  const auto patterns = all_patterns();
  for (const Format16& format : kFormats) {
    const auto singles = converted<float>(patterns, format.dtype, DType::kF32);
    const auto doubles = converted<double>(patterns, format.dtype, DType::kF64);
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      const double expected = format.value(patterns[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(singles[i]) && std::isnan(doubles[i])) << name(format.dtype) << " " << i;
        continue;
      }
      ASSERT_EQ(std::bit_cast<std::uint64_t>(static_cast<double>(singles[i])), std::bit_cast<std::uint64_t>(expected))
          << name(format.dtype) << " " << i;
      ASSERT_EQ(std::bit_cast<std::uint64_t>(doubles[i]), std::bit_cast<std::uint64_t>(expected));
    }
  }
}

TEST(Convert, BringsEveryPatternOf16BitsBackFromF32AndF64) {
  const auto patterns = all_patterns();
  for (const Format16& format : kFormats) {
    const auto back32 =
        converted<std::uint16_t>(converted<float>(patterns, format.dtype, DType::kF32), DType::kF32, format.dtype);
    const auto back64 =
        converted<std::uint16_t>(converted<double>(patterns, format.dtype, DType::kF64), DType::kF64, format.dtype);
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (std::isnan(format.value(patterns[i]))) {
        const std::uint16_t quiet = static_cast<std::uint16_t>(1 << (format.mantissa_bits - 1));
        ASSERT_EQ(back32[i], patterns[i] | quiet) << name(format.dtype) << " " << i; // sign and payload stay
        ASSERT_TRUE(std::isnan(format.value(back64[i])));
        continue;
      }
      ASSERT_EQ(back32[i], patterns[i]) << name(format.dtype);
      ASSERT_EQ(back64[i], patterns[i]) << name(format.dtype);
    }
  }
}

/// Each value of the format, the midpoint to its neighbour, and the floats on both sides of the midpoint.
std::vector<float> hard_to_round(const Format16& format) {
  std::vector<float> values;
  for (std::uint16_t pattern : all_patterns()) {
    const double here = format.value(pattern);
    const double next = format.value(static_cast<std::uint16_t>(pattern + 1));
    if (!std::isfinite(here) || !std::isfinite(next)) {
      continue;
    }
    const float middle = static_cast<float>((here + next) / 2);
    values.insert(
        values.end(),
        {static_cast<float>(here), middle, std::nextafter(middle, INFINITY), std::nextafter(middle, -INFINITY)});
  }
  return values;
}

TEST(Convert, RoundsToNearestEvenAtEveryMidpoint) {
  for (const Format16& format : kFormats) {
    const auto values = hard_to_round(format);
    const auto rounded = converted<std::uint16_t>(values, DType::kF32, format.dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(rounded[i], format.pattern(values[i])) << name(format.dtype) << " of " << values[i];
    }
  }
}

TEST(Convert, RoundsRandomFloatsOfEveryMagnitude) {
  std::mt19937 random(7);
  std::vector<float> values;
  while (values.size() < 1'000'000) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) {
      values.push_back(value);
    }
  }
  for (const Format16& format : kFormats) {
    const auto rounded = converted<std::uint16_t>(values, DType::kF32, format.dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(rounded[i], format.pattern(values[i])) << name(format.dtype) << " of " << values[i];
    }
  }
}

TEST(Convert, MakesOverflowInfinite) {
  const std::vector<float> values = {65504.0F, 65519.9F, 65520.0F, 1e10F, -65520.0F};
  EXPECT_EQ(converted<std::uint16_t>(values, DType::kF32, DType::kF16),
            (std::vector<std::uint16_t>{0x7BFF, 0x7BFF, 0x7C00, 0x7C00, 0xFC00}));
  const std::vector<float> largest = {std::numeric_limits<float>::max()};
  EXPECT_EQ(converted<std::uint16_t>(largest, DType::kF32, DType::kBF16), (std::vector<std::uint16_t>{0x7F80}));
  const std::vector<double> wide = {1e300, -1e300};
  EXPECT_EQ(converted<float>(wide, DType::kF64, DType::kF32), (std::vector<float>{INFINITY, -INFINITY}));
}

TEST(Convert, KeepsANaNWhosePayloadLiesInTheDroppedBits) {
  const std::vector<float> values = {std::bit_cast<float>(0x7F800001U), std::bit_cast<float>(0xFF800001U)};
  EXPECT_EQ(converted<std::uint16_t>(values, DType::kF32, DType::kBF16), (std::vector<std::uint16_t>{0x7FC0, 0xFFC0}));
  EXPECT_EQ(converted<std::uint16_t>(values, DType::kF32, DType::kF16), (std::vector<std::uint16_t>{0x7E00, 0xFE00}));
}

TEST(Convert, IsTheSameAtEveryLengthAndAlignment) {
  std::vector<float> values(70);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) * 1.2345F - 40.0F;
  }
  const auto expected = converted<std::uint16_t>(values, DType::kF32, DType::kBF16);
  for (std::size_t count = 0; count <= values.size(); ++count) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::vector<std::byte> source(count * 4 + shift);
      std::vector<std::byte> target(count * 2 + shift + 1, std::byte{0xEE});
      if (count > 0) {
        std::memcpy(source.data() + shift, values.data(), count * 4);
      }
      convert(source.data() + shift, DType::kF32, target.data() + shift, DType::kBF16, count);
      EXPECT_EQ(count == 0 ? 0 : std::memcmp(target.data() + shift, expected.data(), count * 2), 0);
      EXPECT_EQ(target.back(), std::byte{0xEE}) << "wrote past the end at count " << count;
    }
  }
}

TEST(Convert, CopiesWhereTheDtypesAreEqual) {
  const std::vector<std::uint8_t> bytes = {1, 2, 3, 4};
  EXPECT_EQ(converted<std::uint8_t>(bytes, DType::kF8E4M3, DType::kF8E4M3), bytes);
}

/// An 8-bit format by its definition; arithmetic in double, no bit tricks.
double value_of_float8(DType dtype, int pattern) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (dtype == DType::kF8E8M0) {
    return pattern == 255 ? nan : std::ldexp(1.0, pattern - 127);
  }
  const bool fnuz = dtype == DType::kF8E4M3Fnuz || dtype == DType::kF8E5M2Fnuz;
  const int mantissa_bits = dtype == DType::kF8E4M3 || dtype == DType::kF8E4M3Fnuz ? 3 : 2;
  const int bias = (mantissa_bits == 3 ? 7 : 15) + (fnuz ? 1 : 0);
  const int magnitude = pattern & 0x7F;
  const int exponent = magnitude >> mantissa_bits;
  const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
  const double sign = pattern >= 0x80 ? -1.0 : 1.0;
  if (fnuz && pattern == 0x80) {
    return nan;
  }
  if (dtype == DType::kF8E4M3 && magnitude == 0x7F) {
    return nan;
  }
  if (dtype == DType::kF8E5M2 && exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : nan;
  }
  return sign * (exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                               : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits));
}

TEST(Convert, GivesEveryPatternOf8BitsItsValueInEveryWideFloat) {
  std::vector<std::uint8_t> patterns(256);
  for (std::size_t i = 0; i < 256; ++i) {
    patterns[i] = static_cast<std::uint8_t>(i);
  }
  for (const DType from : {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz, DType::kF8E8M0}) {
    const auto singles = converted<float>(patterns, from, DType::kF32);
    const auto doubles = converted<double>(patterns, from, DType::kF64);
    for (std::size_t i = 0; i < 256; ++i) {
      const double expected = value_of_float8(from, static_cast<int>(i));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(singles[i]) && std::isnan(doubles[i])) << name(from) << " " << i;
        continue;
      }
      EXPECT_EQ(std::bit_cast<std::uint64_t>(static_cast<double>(singles[i])), std::bit_cast<std::uint64_t>(expected))
          << name(from) << " " << i;
      EXPECT_EQ(std::bit_cast<std::uint64_t>(doubles[i]), std::bit_cast<std::uint64_t>(expected));
    }
    for (const Format16& to : kFormats) {
      const auto halves = converted<std::uint16_t>(patterns, from, to.dtype);
      for (std::size_t i = 0; i < 256; ++i) {
        if (!std::isnan(value_of_float8(from, static_cast<int>(i)))) {
          EXPECT_EQ(halves[i], to.pattern(value_of_float8(from, static_cast<int>(i)))) << name(from) << " " << i;
        }
      }
    }
  }
}

TEST(Convert, TakesEveryFloatToTheWideOnesAndNoOtherPair) {
  const DType wide[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
  for (DType from : wide) {
    for (DType to : wide) {
      EXPECT_TRUE(convertible(from, to));
    }
    EXPECT_FALSE(convertible(from, DType::kI64));
    EXPECT_TRUE(convertible(DType::kF8E4M3, from));
    EXPECT_FALSE(convertible(from, DType::kF8E4M3));
    EXPECT_FALSE(convertible(DType::kF4, from));
    EXPECT_FALSE(convertible(DType::kU8, from));
  }
  std::byte byte{};
  const auto refused = raised<UsageError>([&] { convert(&byte, DType::kU8, &byte, DType::kF32, 1); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kNotConvertible);
}

} // namespace
} // namespace tieshard

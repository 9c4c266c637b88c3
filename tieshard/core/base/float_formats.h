// tieshard/core/base/float_formats.h
//
// The four wide float formats as bit patterns: element by element, to and from float or double.
//
// Flow:   ties/stored_copies.h, io/convert.h -> [this]
// Source: IEEE 754 binary16 and binary32; BF16 is the upper half of binary32. Every function is free of branches, so
// that
//         loops over it vectorise, and no result hangs on a subnormal operand, so that flush-to-zero modes change
//         nothing.

#pragma once

#include <bit>
#include <cstdint>

namespace tieshard {

/// `a` where `condition` holds, else `b`, by masks: a conditional expression over float arithmetic would become a
/// branch.
inline std::uint32_t select(bool condition, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

/// IEEE binary32.
struct Float32Format {
  using Bits = std::uint32_t;
  static float decode(Bits bits) {
    return std::bit_cast<float>(bits);
  }
  static Bits encode(float value) {
    return std::bit_cast<Bits>(value);
  }
};

/// bfloat16, rounded to nearest even; a NaN keeps its sign and upper payload and becomes quiet.
struct BFloat16Format {
  using Bits = std::uint16_t;
  static float decode(Bits bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static Bits encode(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x0040U;
    return static_cast<Bits>(select((bits & 0x7FFFFFFFU) > 0x7F800000U, quiet_nan, rounded));
  }
};

/// IEEE binary16, rounded to nearest even; overflow becomes infinity, a NaN becomes quiet.
struct Float16Format {
  using Bits = std::uint16_t;

  static float decode(Bits half) {
    const std::uint32_t magnitude = half & 0x7FFFU;
    const std::uint32_t sign = (half & 0x8000U) << 16;
    const std::uint32_t shifted = magnitude << 13;
    const std::uint32_t normal = shifted + kBiasDifference;
    const std::uint32_t infinite_or_nan = shifted | 0x7F800000U | select(magnitude > 0x7C00U, 0x00400000U, 0U);
    // A subnormal half is magnitude * 2^-24: laid into the mantissa of 2^-14, whose value is then taken off again.
    const float subnormal_value =
        std::bit_cast<float>(shifted + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(subnormal_value);
    const std::uint32_t finite = select(magnitude < 0x0400U, subnormal, normal);
    return std::bit_cast<float>(sign | select(magnitude >= 0x7C00U, infinite_or_nan, finite));
  }

  static Bits encode(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t normal = (magnitude - kBiasDifference + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
    // Below 2^-14 the addition of 0.5 rounds at bit 2^-24, the unit of a subnormal half.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
    const std::uint32_t finite = select(magnitude < kSmallestNormal, subnormal, normal);
    const std::uint32_t nan = 0x7E00U | ((magnitude >> 13) & 0x03FFU);
    const std::uint32_t overflowed = select(magnitude > 0x7F800000U, nan, 0x7C00U);
    return static_cast<Bits>(((bits >> 16) & 0x8000U) | select(magnitude >= kOverflow, overflowed, finite));
  }

 private:
  static constexpr std::uint32_t kBiasDifference = (127U - 15U) << 23;
  static constexpr std::uint32_t kSmallestNormal = 113U << 23; ///< 2^-14 as binary32
  static constexpr std::uint32_t kOverflow = 0x477FF000U;      ///< 65520: half way from the largest half to 2^16
};

/// IEEE binary64. Narrower formats reach it, and it reaches them, by way of float, as in torch.
struct Float64Format {
  using Bits = std::uint64_t;
  static double decode(Bits bits) {
    return std::bit_cast<double>(bits);
  }
  static Bits encode(double value) {
    return std::bit_cast<Bits>(value);
  }
};

} // namespace tieshard

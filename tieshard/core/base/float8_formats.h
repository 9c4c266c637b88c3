// tieshard/core/base/float8_formats.h
//
// The 8-bit float formats as bit patterns: element by element, to float. Nothing is encoded in them.
//
// Flow:   io/convert.h, io/decode_fp8.h -> [this] -> float_formats.h
// Source: OCP 8-bit floating point (E4M3, E5M2) and microscaling formats (E8M0); the FNUZ variants have no negative
//         zero, no infinity, one NaN (0x80) and a bias that is greater by one. Free of branches, as float_formats.h.

#pragma once

#include <bit>
#include <cstdint>

#include "tieshard/core/base/float_formats.h"

namespace tieshard {

/// Sign, `kExponentBits`, `kMantissaBits`: the finite values of an 8-bit format.
template <int kMantissaBits, std::uint32_t kBias>
struct Float8Finite {
  static std::uint32_t decode(std::uint32_t bits) {
    constexpr std::uint32_t kBiasDifference = (127U - kBias) << 23;
    constexpr std::uint32_t kSmallestNormal = (128U - kBias) << 23;
    const std::uint32_t magnitude = bits & 0x7FU;
    const std::uint32_t shifted = magnitude << (23 - kMantissaBits);
    // A subnormal is laid into the mantissa of the smallest normal, whose value is then taken off again.
    const float subnormal_value =
        std::bit_cast<float>(shifted + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(subnormal_value);
    const std::uint32_t finite = select(magnitude < (1U << kMantissaBits), subnormal, shifted + kBiasDifference);
    return ((bits & 0x80U) << 24) | finite;
  }
};

constexpr std::uint32_t kQuietNan = 0x7FC00000U;

/// No infinity; S.1111.111 is NaN.
struct Float8E4M3Format {
  using Bits = std::uint8_t;
  static float decode(Bits bits) {
    const std::uint32_t nan = ((bits & 0x80U) << 24) | kQuietNan;
    return std::bit_cast<float>(select((bits & 0x7FU) == 0x7FU, nan, Float8Finite<3, 7>::decode(bits)));
  }
};

/// The upper half of a binary16, infinities and NaN included.
struct Float8E5M2Format {
  using Bits = std::uint8_t;
  static float decode(Bits bits) {
    return Float16Format::decode(static_cast<std::uint16_t>(bits << 8));
  }
};

struct Float8E4M3FnuzFormat {
  using Bits = std::uint8_t;
  static float decode(Bits bits) {
    return std::bit_cast<float>(select(bits == 0x80U, kQuietNan, Float8Finite<3, 8>::decode(bits)));
  }
};

struct Float8E5M2FnuzFormat {
  using Bits = std::uint8_t;
  static float decode(Bits bits) {
    return std::bit_cast<float>(select(bits == 0x80U, kQuietNan, Float8Finite<2, 16>::decode(bits)));
  }
};

/// An exponent alone: 2^(bits - 127); 255 is NaN.
struct Float8E8M0Format {
  using Bits = std::uint8_t;
  static float decode(Bits bits) {
    constexpr std::uint32_t kTwoToMinus127 = 0x00400000U; // below the normal values of binary32
    const std::uint32_t power = select(bits == 0U, kTwoToMinus127, static_cast<std::uint32_t>(bits) << 23);
    return std::bit_cast<float>(select(bits == 0xFFU, kQuietNan, power));
  }
};

} // namespace tieshard

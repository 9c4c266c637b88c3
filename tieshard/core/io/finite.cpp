#include "tieshard/core/io/finite.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "tieshard/core/base/error.h"

// As in convert.cpp: the same loops, compiled once more for processors that have AVX2.
#if defined(__x86_64__) && defined(__GNUC__)
#define TIESHARD_AVX2_LOOPS 1
#endif

namespace tieshard {
namespace {

constexpr std::size_t kBlock = 256; ///< elements that are looked at together; the place is then sought within them

using Scan = std::size_t (*)(const std::byte* data, std::size_t count);

/// In all four formats a value is NaN or infinite when every bit of its exponent is set.
template <typename Bits, Bits kExponent>
struct Format {
  using Word = Bits;
  static Bits not_finite(Bits bits) {
    return static_cast<Bits>((bits & kExponent) == kExponent ? 1 : 0);
  }
};

using HalfScan = Format<std::uint16_t, 0x7C00U>;
using BFloatScan = Format<std::uint16_t, 0x7F80U>;
using SingleScan = Format<std::uint32_t, 0x7F800000U>;
using DoubleScan = Format<std::uint64_t, 0x7FF0000000000000U>;

template <typename F>
[[gnu::always_inline]] inline std::size_t scan_each(const std::byte* data, std::size_t count) {
  using Word = typename F::Word;
  std::array<Word, kBlock> block;
  std::size_t done = 0;
  for (; done + kBlock <= count; done += kBlock) {
    std::memcpy(block.data(), data + done * sizeof(Word), sizeof(block));
    Word found = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      found = static_cast<Word>(found | F::not_finite(block[i]));
    }
    if (found != 0) {
      break;
    }
  }
  for (; done < count; ++done) {
    Word word = 0;
    std::memcpy(&word, data + done * sizeof(Word), sizeof(Word));
    if (F::not_finite(word) != 0) {
      break;
    }
  }
  return done;
}

template <typename F>
std::size_t baseline(const std::byte* data, std::size_t count) {
  return scan_each<F>(data, count);
}

#ifdef TIESHARD_AVX2_LOOPS
template <typename F>
[[gnu::target("avx2")]] std::size_t avx2(const std::byte* data, std::size_t count) {
  return scan_each<F>(data, count);
}
#endif

template <typename F>
Scan best_scan() {
#ifdef TIESHARD_AVX2_LOOPS
  if (__builtin_cpu_supports("avx2")) {
    return avx2<F>;
  }
#endif
  return baseline<F>;
}

} // namespace

std::size_t first_not_finite(const std::byte* data, DType dtype, std::size_t count) {
  switch (dtype) {
    case DType::kF16:
      return best_scan<HalfScan>()(data, count);
    case DType::kBF16:
      return best_scan<BFloatScan>()(data, count);
    case DType::kF32:
      return best_scan<SingleScan>()(data, count);
    case DType::kF64:
      return best_scan<DoubleScan>()(data, count);
    default:
      throw InternalError({.code = Code::kBug,
                           .what = "a look for NaN in elements that are no wide floats",
                           .why = concat("expected F16, BF16, F32 or F64, got ", name(dtype)),
                           .fix = "report this"});
  }
}

} // namespace tieshard

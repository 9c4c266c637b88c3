#include "tieshard/core/io/convert.h"

#include <array>
#include <cstring>
#include <type_traits>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/float8_formats.h"
#include "tieshard/core/base/float_formats.h"

// The baseline of x86-64 has no 16-bit to 32-bit vector moves; where the processor has AVX2 the same loops run in it.
#if defined(__x86_64__) && defined(__GNUC__)
#define TIESHARD_AVX2_LOOPS 1
#endif

namespace tieshard {
namespace {

constexpr std::size_t kBlock = 64; ///< elements; a short row costs one block at most

using Loop = void (*)(const std::byte* source, std::byte* target, std::size_t count);

/// Converts `count` <= kBlock elements by way of arrays that are aligned, cannot overlap and have a fixed length: so
/// the compiler turns the loop into vector code at -O2 already, in which it checks neither alignment nor overlap at run
/// time.
template <typename From, typename To>
[[gnu::always_inline]] inline void convert_block(const std::byte* source, std::byte* target, std::size_t count) {
  using Value = std::conditional_t<sizeof(typename To::Bits) == 8, double, float>;
  std::array<typename From::Bits, kBlock> in;
  std::array<typename To::Bits, kBlock> out;
  if (count < kBlock) {
    in.fill(0);
  }
  std::memcpy(in.data(), source, count * sizeof(in[0]));
  for (std::size_t i = 0; i < kBlock; ++i) {
    out[i] = To::encode(static_cast<Value>(From::decode(in[i])));
  }
  std::memcpy(target, out.data(), count * sizeof(out[0]));
}

template <typename From, typename To>
[[gnu::always_inline]] inline void convert_each(const std::byte* source, std::byte* target, std::size_t count) {
  std::size_t done = 0;
  for (; done + kBlock <= count; done += kBlock) {
    convert_block<From, To>(
        source + done * sizeof(typename From::Bits), target + done * sizeof(typename To::Bits), kBlock);
  }
  if (done < count) {
    convert_block<From, To>(
        source + done * sizeof(typename From::Bits), target + done * sizeof(typename To::Bits), count - done);
  }
}

template <typename From, typename To>
void baseline(const std::byte* source, std::byte* target, std::size_t count) {
  convert_each<From, To>(source, target, count);
}

#ifdef TIESHARD_AVX2_LOOPS
template <typename From, typename To>
[[gnu::target("avx2")]] void avx2(const std::byte* source, std::byte* target, std::size_t count) {
  convert_each<From, To>(source, target, count);
}
#endif

template <typename From, typename To>
Loop best_loop() {
#ifdef TIESHARD_AVX2_LOOPS
  if (__builtin_cpu_supports("avx2")) {
    return avx2<From, To>;
  }
#endif
  return baseline<From, To>;
}

template <typename From>
Loop loop_from(DType to) {
  switch (to) {
    case DType::kF16:
      return best_loop<From, Float16Format>();
    case DType::kBF16:
      return best_loop<From, BFloat16Format>();
    case DType::kF32:
      return best_loop<From, Float32Format>();
    case DType::kF64:
      return best_loop<From, Float64Format>();
    default:
      return nullptr;
  }
}

Loop find_loop(DType from, DType to) {
  switch (from) {
    case DType::kF16:
      return loop_from<Float16Format>(to);
    case DType::kBF16:
      return loop_from<BFloat16Format>(to);
    case DType::kF32:
      return loop_from<Float32Format>(to);
    case DType::kF64:
      return loop_from<Float64Format>(to);
    case DType::kF8E4M3:
      return loop_from<Float8E4M3Format>(to);
    case DType::kF8E5M2:
      return loop_from<Float8E5M2Format>(to);
    case DType::kF8E4M3Fnuz:
      return loop_from<Float8E4M3FnuzFormat>(to);
    case DType::kF8E5M2Fnuz:
      return loop_from<Float8E5M2FnuzFormat>(to);
    case DType::kF8E8M0:
      return loop_from<Float8E8M0Format>(to);
    default:
      return nullptr;
  }
}

} // namespace

bool convertible(DType from, DType to) {
  return from == to || (is_loadable_float(from) && is_wide_float(to));
}

void convert(const std::byte* source, DType from, std::byte* target, DType to, std::size_t count) {
  if (count == 0) {
    return; // an empty buffer may be null, which memcpy must not be given
  }
  if (from == to) {
    std::memcpy(target, source, (count * static_cast<std::size_t>(bits(from)) + 7) / 8);
    return;
  }
  const Loop loop = find_loop(from, to);
  if (loop == nullptr) {
    throw UsageError({.code = Code::kNotConvertible,
                      .what = "no conversion between two dtypes",
                      .why = concat("expected a float to F16, BF16, F32 or F64, got ", name(from), " to ", name(to)),
                      .fix = "read the tensor in its stored dtype"});
  }
  loop(source, target, count);
}

} // namespace tieshard

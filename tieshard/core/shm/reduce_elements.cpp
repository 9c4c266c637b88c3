#include "tieshard/core/shm/reduce_elements.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/float_formats.h"

namespace tieshard {
namespace {

/// Elements that are accumulated at a time: they stay in the first cache, and the loops over them have a fixed length,
/// which compilers vectorise without asking whether the arrays overlap.
constexpr std::size_t kBlock = 128;

/// Integers: unsigned arithmetic for the sum, which may wrap around; the type's own order for the others.
template <typename Integer>
struct IntegerFormat {
  using Bits = Integer;
  static Integer decode(Integer value) {
    return value;
  }
  static Integer encode(Integer value) {
    return value;
  }
};

template <Reduction kReduction, typename Value>
[[gnu::always_inline]] inline Value combine(Value a, Value b) {
  if constexpr (kReduction == Reduction::kMin) {
    return a < b || a != a ? a : b;
  } else if constexpr (kReduction == Reduction::kMax) {
    return a > b || a != a ? a : b;
  } else if constexpr (std::is_integral_v<Value>) {
    using Unsigned = std::make_unsigned_t<Value>;
    return static_cast<Value>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}

struct Arrays {
  std::byte* target;
  std::span<const std::byte* const> sources;
};

/// Elements [begin, begin + length) with length <= kBlock. Where kWhole, length is kBlock.
template <Reduction kReduction, typename Format, bool kWhole>
[[gnu::always_inline]] inline void reduce_block(const Arrays& arrays, std::size_t begin, std::size_t rest) {
  using Bits = typename Format::Bits;
  using Value = decltype(Format::decode(Bits{}));
  const std::size_t length = kWhole ? kBlock : rest;
  alignas(64) Value sum[kBlock];
  const auto* first = reinterpret_cast<const Bits*>(arrays.sources[0]) + begin;
  for (std::size_t i = 0; i < length; ++i) {
    sum[i] = Format::decode(first[i]);
  }
  for (const std::byte* source : arrays.sources.subspan(1)) {
    const auto* next = reinterpret_cast<const Bits*>(source) + begin;
    for (std::size_t i = 0; i < length; ++i) {
      sum[i] = combine<kReduction, Value>(sum[i], Format::decode(next[i]));
    }
  }
  auto* target = reinterpret_cast<Bits*>(arrays.target) + begin;
  for (std::size_t i = 0; i < length; ++i) {
    target[i] = Format::encode(sum[i]);
  }
}

template <Reduction kReduction, typename Format>
[[gnu::always_inline]] inline void reduce_all(const Arrays& arrays, std::size_t count) {
  std::size_t begin = 0;
  for (; begin + kBlock <= count; begin += kBlock) {
    reduce_block<kReduction, Format, true>(arrays, begin, kBlock);
  }
  if (begin < count) {
    reduce_block<kReduction, Format, false>(arrays, begin, count - begin);
  }
}

template <Reduction kReduction, typename Format>
void reduce_on_any_core(const Arrays& arrays, std::size_t count) {
  reduce_all<kReduction, Format>(arrays, count);
}

#if defined(__x86_64__)

template <Reduction kReduction, typename Format>
[[gnu::target("avx2")]] void reduce_with_avx2(const Arrays& arrays, std::size_t count) {
  reduce_all<kReduction, Format>(arrays, count);
}

template <Reduction kReduction, typename Format>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void reduce_with_avx512(const Arrays& arrays, std::size_t count) {
  reduce_all<kReduction, Format>(arrays, count);
}

/// 0: any core of x86-64; 1: with AVX2; 2: with AVX-512. The results have the same bits.
int vector_level() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return 2;
  }
  return __builtin_cpu_supports("avx2") ? 1 : 0;
}

#endif

template <Reduction kReduction, typename Format>
void reduce_as(const Arrays& arrays, std::size_t count) {
#if defined(__x86_64__)
  static const int level = vector_level();
  if (level == 2) {
    return reduce_with_avx512<kReduction, Format>(arrays, count);
  }
  if (level == 1) {
    return reduce_with_avx2<kReduction, Format>(arrays, count);
  }
#endif
  reduce_on_any_core<kReduction, Format>(arrays, count);
}

template <typename Format>
void reduce_format(Reduction reduction, const Arrays& arrays, std::size_t count) {
  switch (reduction) {
    case Reduction::kSum:
      return reduce_as<Reduction::kSum, Format>(arrays, count);
    case Reduction::kMin:
      return reduce_as<Reduction::kMin, Format>(arrays, count);
    case Reduction::kMax:
      return reduce_as<Reduction::kMax, Format>(arrays, count);
  }
}

using Reducer = void (*)(Reduction, const Arrays&, std::size_t);

/// Null for a dtype that cannot be reduced.
Reducer reducer_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return reduce_format<Float16Format>;
    case DType::kBF16:
      return reduce_format<BFloat16Format>;
    case DType::kF32:
      return reduce_format<Float32Format>;
    case DType::kF64:
      return reduce_format<Float64Format>;
    case DType::kI8:
      return reduce_format<IntegerFormat<std::int8_t>>;
    case DType::kU8:
      return reduce_format<IntegerFormat<std::uint8_t>>;
    case DType::kI16:
      return reduce_format<IntegerFormat<std::int16_t>>;
    case DType::kU16:
      return reduce_format<IntegerFormat<std::uint16_t>>;
    case DType::kI32:
      return reduce_format<IntegerFormat<std::int32_t>>;
    case DType::kU32:
      return reduce_format<IntegerFormat<std::uint32_t>>;
    case DType::kI64:
      return reduce_format<IntegerFormat<std::int64_t>>;
    case DType::kU64:
      return reduce_format<IntegerFormat<std::uint64_t>>;
    default:
      return nullptr;
  }
}

} // namespace

void reduce_elements(
    Reduction reduction, DType dtype, std::byte* target, std::span<const std::byte* const> arrays, std::size_t count) {
  const Reducer reducer = reducer_of(dtype);
  if (reducer == nullptr) {
    throw InternalError({.code = Code::kBug,
                         .what = "a dtype that cannot be reduced",
                         .why = concat("got ", name(dtype)),
                         .fix = "report it"});
  }
  reducer(reduction, {target, arrays}, count);
}

} // namespace tieshard

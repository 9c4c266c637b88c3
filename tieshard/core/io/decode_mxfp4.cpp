#include "tieshard/core/io/decode_mxfp4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tieshard/core/base/float_formats.h"
#include "tieshard/core/io/stored_window.h"

// As in convert.cpp: the same loops, compiled once more for processors that have AVX2.
#if defined(__x86_64__) && defined(__GNUC__)
#define TIESHARD_AVX2_LOOPS 1
#endif

namespace tieshard {
namespace {

constexpr std::size_t kRun = 64; ///< output rows of a tile: elements of one run in the target

/// One group of each of `run` stored rows, its bytes turned so that one input of all rows lies together.
struct Tile {
  std::array<std::array<std::uint8_t, kRun>, kMxfp4BlockBytes> bytes;
  std::array<float, kRun> half_scales;
};

/// Sign, two bits of exponent with bias 1, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, all
/// times 2. (Half the scale goes with it: the largest scale, 2^128, is no float32.)
[[gnu::always_inline]] inline float decode_twice_e2m1(std::uint32_t bits) {
  constexpr std::uint32_t kOne = 127U << 23;
  const std::uint32_t magnitude = bits & 7U;
  const std::uint32_t normal = (magnitude << 22) + kOne;
  const std::uint32_t subnormal = magnitude * kOne; // 0 or 1
  return std::bit_cast<float>(((bits & 8U) << 28) | select(magnitude < 2U, subnormal, normal));
}

/// Values of the tile's input `input` (0 to 31) for all its rows.
template <typename To>
[[gnu::always_inline]] inline void decode_input(const Tile& tile,
                                                std::size_t input,
                                                std::byte* target,
                                                std::size_t run) {
  using Value = std::conditional_t<sizeof(typename To::Bits) == 8, double, float>;
  const std::array<std::uint8_t, kRun>& packed = tile.bytes[input / 2];
  const std::uint32_t shift = input % 2 == 0 ? 0U : 4U; // the low nibble is the even input
  std::array<typename To::Bits, kRun> out;
  for (std::size_t i = 0; i < kRun; ++i) {
    const Value value = decode_twice_e2m1((static_cast<std::uint32_t>(packed[i]) >> shift) & 15U);
    out[i] = To::encode(value * static_cast<Value>(tile.half_scales[i]));
  }
  std::memcpy(target, out.data(), run * sizeof(out[0]));
}

using DecodeInput = void (*)(const Tile& tile, std::size_t input, std::byte* target, std::size_t run);

template <typename To>
void baseline(const Tile& tile, std::size_t input, std::byte* target, std::size_t run) {
  decode_input<To>(tile, input, target, run);
}

#ifdef TIESHARD_AVX2_LOOPS
template <typename To>
[[gnu::target("avx2")]] void avx2(const Tile& tile, std::size_t input, std::byte* target, std::size_t run) {
  decode_input<To>(tile, input, target, run);
}
#endif

template <typename To>
DecodeInput best_loop() {
#ifdef TIESHARD_AVX2_LOOPS
  if (__builtin_cpu_supports("avx2")) {
    return avx2<To>;
  }
#endif
  return baseline<To>;
}

DecodeInput find_loop(DType target_dtype) {
  switch (target_dtype) {
    case DType::kF16:
      return best_loop<Float16Format>();
    case DType::kBF16:
      return best_loop<BFloat16Format>();
    case DType::kF64:
      return best_loop<Float64Format>();
    default:
      return best_loop<Float32Format>();
  }
}

/// Half of 2^(byte - 127), exact for every byte.
std::array<float, 256> half_powers() {
  std::array<float, 256> result{};
  for (int byte = 0; byte < 256; ++byte) {
    result[static_cast<std::size_t>(byte)] = static_cast<float>(std::ldexp(1.0, byte - 128));
  }
  return result;
}

/// Blocks and scales of a piece in memory.
struct Window {
  const std::byte* blocks = nullptr;
  std::uint64_t block_pitch = 0;
  const std::byte* scales = nullptr;
  std::uint64_t scale_pitch = 0;
};

/// Takes group `group` of `run` stored rows from `row` on.
void gather(const Window& window, std::uint64_t row, std::uint64_t group, std::size_t run, Tile& tile) {
  static const std::array<float, 256> kHalfPowers = half_powers();
  for (std::size_t at = 0; at < run; ++at) {
    const std::byte* const block = window.blocks + (row + at) * window.block_pitch + group * kMxfp4BlockBytes;
    for (std::size_t byte = 0; byte < kMxfp4BlockBytes; ++byte) {
      tile.bytes[byte][at] = std::to_integer<std::uint8_t>(block[byte]);
    }
    const std::byte exponent = window.scales[(row + at) * window.scale_pitch + group];
    tile.half_scales[at] = kHalfPowers[std::to_integer<std::size_t>(exponent)];
  }
}

/// Rows of `column_bytes` for each group, of blocks or of scales.
FileRows rows_in_file(std::uint64_t offset,
                      const SliceMatrices& slice,
                      const DecodePiece& piece,
                      std::uint64_t column_bytes) {
  const std::int64_t groups = slice.whole_rows / kMxfp4Group;
  const std::int64_t row = slice.whole_lead(piece.lead) * slice.whole_columns + piece.row;
  return {.first = offset + static_cast<std::uint64_t>(row * groups + piece.column) * column_bytes,
          .rows = static_cast<std::uint64_t>(piece.rows),
          .row_bytes = static_cast<std::uint64_t>(piece.columns) * column_bytes,
          .stride = static_cast<std::uint64_t>(groups) * column_bytes};
}

} // namespace

std::uint64_t decode_mxfp4(const Checkpoint& checkpoint,
                           const SliceRead& read,
                           const DecodePiece& piece,
                           std::byte* target,
                           DType target_dtype,
                           std::vector<std::byte>& buffer) {
  const SliceMatrices slice(read);
  const ScaleRead& scale = read.scale.value();
  const FileRows blocks = rows_in_file(read.offset, slice, piece, kMxfp4BlockBytes);
  const FileRows scales = rows_in_file(scale.offset, slice, piece, 1);
  const std::uint64_t block_bytes = blocks.buffer_bytes(piece.read_gaps);
  std::byte* const memory = grown(buffer, block_bytes + scales.buffer_bytes(piece.read_gaps));
  const std::uint64_t asked = blocks.read(checkpoint.files()[read.file].file(), piece.read_gaps, memory) +
                              scales.read(checkpoint.files()[scale.file].file(), piece.read_gaps, memory + block_bytes);
  const Window window{.blocks = memory,
                      .block_pitch = blocks.pitch(piece.read_gaps),
                      .scales = memory + block_bytes,
                      .scale_pitch = scales.pitch(piece.read_gaps)};
  const std::size_t item = static_cast<std::size_t>(bits(target_dtype)) / 8;
  const DecodeInput decode = find_loop(target_dtype);
  Tile tile{};
  for (std::int64_t group = 0; group < piece.columns; ++group) {
    const std::int64_t first = (piece.column + group) * kMxfp4Group; // input, counted in the whole matrix
    const std::int64_t begin = std::max(first, slice.row);
    const std::int64_t end = std::min(first + kMxfp4Group, slice.row + slice.rows);
    for (std::int64_t row = 0; row < piece.rows; row += static_cast<std::int64_t>(kRun)) {
      const std::size_t run = std::min(kRun, static_cast<std::size_t>(piece.rows - row));
      gather(window, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(group), run, tile);
      for (std::int64_t input = begin; input < end; ++input) {
        const std::uint64_t index = slice.local_index(piece.lead, input, piece.row + row);
        decode(tile, static_cast<std::size_t>(input - first), target + index * item, run);
      }
    }
  }
  return asked;
}

} // namespace tieshard

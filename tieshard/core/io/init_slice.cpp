#include "tieshard/core/io/init_slice.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/plan/strided_range.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kBuffer = 1024; ///< elements that are made before they are converted

/// FNV-1a: a name as 64 bits, the same on every machine.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3U;
  }
  return hash;
}

std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}

std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

/// The values of one parameter, four at a time: a block of four shares a counter.
class Values {
 public:
  explicit Values(const InitSlice& slice) : rule_(slice.rule), name_(hash_of(slice.fqn)) {}

  /// Values of elements [first, first + count) of the whole parameter.
  void fill(std::uint64_t first, std::uint64_t count, double* out) const {
    if (rule_.kind == InitRule::Kind::kConstant) {
      std::fill_n(out, count, rule_.a);
      return;
    }
    for (std::uint64_t done = 0; done < count;) {
      const std::array<double, 4> values = block((first + done) / 4);
      for (std::uint64_t at = (first + done) % 4; at < 4 && done < count; ++at, ++done) {
        out[done] = values[at];
      }
    }
  }

 private:
  std::array<double, 4> block(std::uint64_t index) const {
    const std::array<std::uint32_t, 4> words =
        philox4x32({low(index), high(index), low(name_), high(name_)}, {low(rule_.seed), high(rule_.seed)});
    constexpr double kStep = 0x1p-32;
    if (rule_.kind == InitRule::Kind::kUniform) {
      std::array<double, 4> values;
      std::ranges::transform(words, values.begin(), [this](std::uint32_t word) {
        return rule_.a + (rule_.b - rule_.a) * (word * kStep); // low is reached, high is not
      });
      return values;
    }
    const auto [first, second] = normal_pair((words[0] + 0.5) * kStep, words[1] * kStep);
    const auto [third, fourth] = normal_pair((words[2] + 0.5) * kStep, words[3] * kStep);
    return {first, second, third, fourth};
  }

  /// `radius` in (0, 1), `angle` in [0, 1).
  std::array<double, 2> normal_pair(double radius, double angle) const {
    const double length = rule_.b * std::sqrt(-2.0 * std::log(radius));
    const double turn = 2.0 * std::numbers::pi * angle;
    return {rule_.a + length * std::cos(turn), rule_.a + length * std::sin(turn)};
  }

  const InitRule& rule_;
  std::uint64_t name_;
};

} // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kFactors[2] = {0xD2511F53U, 0xCD9E8D57U};
  constexpr std::uint32_t kWeyl[2] = {0x9E3779B9U, 0xBB67AE85U};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = kFactors[0] * counter[0];
    const std::uint64_t second = kFactors[1] * counter[2];
    counter = {high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1], low(first)};
    key = {key[0] + kWeyl[0], key[1] + kWeyl[1]};
  }
  return counter;
}

void fill_slice(const InitSlice& slice, std::byte* target, DType dtype) {
  if (!is_wide_float(dtype)) {
    throw UsageError({.code = Code::kNotConvertible,
                      .what = "no conversion between two dtypes",
                      .where = slice.fqn,
                      .why = concat("expected a target of F16, BF16, F32 or F64, got ", name(dtype)),
                      .fix = "initialise into one of these four"});
  }
  // As a range of one-byte elements: its bytes are indices of elements.
  const StridedRange range = strided_range(slice.shape, DType::kU8, slice.dim, slice.chunk);
  const std::uint64_t item = static_cast<std::uint64_t>(bits(dtype)) / 8;
  const Values values(slice);
  std::array<double, kBuffer> made;
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    for (std::uint64_t done = 0; done < range.row_bytes; done += kBuffer) {
      const std::uint64_t count = std::min(kBuffer, range.row_bytes - done);
      values.fill(range.first + row * range.stride + done, count, made.data());
      convert(reinterpret_cast<const std::byte*>(made.data()), DType::kF64, target, dtype, count);
      target += count * item;
    }
  }
}

} // namespace tieshard

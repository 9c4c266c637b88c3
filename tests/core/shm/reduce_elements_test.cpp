#include "tieshard/core/shm/reduce_elements.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/float_formats.h"

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

template <typename Element>
std::vector<Element> reduce(Reduction reduction, DType dtype, const std::vector<std::vector<Element>>& arrays) {
  std::vector<const std::byte*> pointers;
  for (const auto& array : arrays) {
    pointers.push_back(reinterpret_cast<const std::byte*>(array.data()));
  }
  std::vector<Element> target(arrays.front().size());
  reduce_elements(reduction, dtype, reinterpret_cast<std::byte*>(target.data()), pointers, target.size());
  return target;
}

TEST(ReduceElements, AddsInTheOrderGiven) {
  const float large = 1e8F;
  EXPECT_EQ(reduce<float>(Reduction::kSum, DType::kF32, {{large}, {-large}, {1.0F}}), std::vector<float>{1.0F});
  EXPECT_EQ(reduce<float>(Reduction::kSum, DType::kF32, {{1.0F}, {large}, {-large}}), std::vector<float>{0.0F});
}

TEST(ReduceElements, IsTheSameInABlockAndBehindIt) {
  for (const std::size_t count : {1, 127, 128, 129, 300}) {
    std::vector<double> a(count);
    std::iota(a.begin(), a.end(), 0.5);
    const std::vector<double> b(count, 100.0);
    const std::vector<double> sum = reduce<double>(Reduction::kSum, DType::kF64, {a, b});
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(sum[i], a[i] + 100.0);
    }
  }
}

TEST(ReduceElements, RoundsHalfPrecisionOnceAtTheEnd) {
  const std::uint16_t one = BFloat16Format::encode(1.0F);
  const std::uint16_t tiny = BFloat16Format::encode(0.00390625F); // half a unit of 1.0 in bf16: alone it would be lost
  EXPECT_EQ(reduce<std::uint16_t>(Reduction::kSum, DType::kBF16, {{one}, {tiny}, {tiny}}),
            std::vector<std::uint16_t>{BFloat16Format::encode(1.0078125F)});
  const std::uint16_t half_one = Float16Format::encode(1.0F);
  const std::uint16_t half_tiny = Float16Format::encode(0.00048828125F);
  EXPECT_EQ(reduce<std::uint16_t>(Reduction::kSum, DType::kF16, {{half_one}, {half_tiny}, {half_tiny}}),
            std::vector<std::uint16_t>{Float16Format::encode(1.0009765625F)});
}

TEST(ReduceElements, IntegersWrapAround) {
  EXPECT_EQ(reduce<std::int8_t>(Reduction::kSum, DType::kI8, {{127}, {1}}), std::vector<std::int8_t>{-128});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduce<std::int64_t>(Reduction::kSum, DType::kI64, {{kMost}, {2}}), std::vector<std::int64_t>{-kMost});
}

TEST(ReduceElements, MinAndMaxKnowTheSign) {
  EXPECT_EQ(reduce<std::int32_t>(Reduction::kMin, DType::kI32, {{-5, 9}, {3, 4}}), (std::vector<std::int32_t>{-5, 4}));
  EXPECT_EQ(reduce<std::int32_t>(Reduction::kMax, DType::kI32, {{-5, 9}, {3, 4}}), (std::vector<std::int32_t>{3, 9}));
  EXPECT_EQ(reduce<std::uint8_t>(Reduction::kMax, DType::kU8, {{200}, {3}}), std::vector<std::uint8_t>{200});
}

TEST(ReduceElements, ANanInAnyArrayIsTheMinimumAndTheMaximum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    EXPECT_TRUE(std::isnan(reduce<float>(reduction, DType::kF32, {{nan}, {1.0F}, {2.0F}})[0]));
    EXPECT_TRUE(std::isnan(reduce<float>(reduction, DType::kF32, {{1.0F}, {nan}, {2.0F}})[0]));
    EXPECT_TRUE(std::isnan(reduce<float>(reduction, DType::kF32, {{1.0F}, {2.0F}, {nan}})[0]));
  }
}

TEST(ReduceElements, TheTargetMayBeOneOfTheArrays) {
  std::vector<float> a(300, 1.0F);
  const std::vector<float> b(300, 2.0F);
  auto* target = reinterpret_cast<std::byte*>(a.data());
  const std::byte* arrays[] = {reinterpret_cast<const std::byte*>(b.data()), target};
  reduce_elements(Reduction::kSum, DType::kF32, target, arrays, a.size());
  EXPECT_EQ(a, std::vector<float>(300, 3.0F));
}

TEST(ReduceElements, RefusesWhatHasNoSum) {
  std::byte target{};
  const std::byte* arrays[] = {&target};
  for (const DType dtype : {DType::kF4, DType::kBool, DType::kF8E4M3}) {
    expect_refusal(
        [&] { reduce_elements(Reduction::kSum, dtype, &target, arrays, 1); }, Code::kBug, {std::string(name(dtype))});
  }
}

} // namespace
} // namespace tieshard::testing

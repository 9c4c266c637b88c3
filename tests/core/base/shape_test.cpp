#include "tieshard/core/base/shape.h"

#include <limits>

#include <gtest/gtest.h>

namespace tieshard {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31;
constexpr std::int64_t kTwo32 = std::int64_t{1} << 32;

TEST(Shape, IsShownAsPythonShowsAList) {
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{49152, 576}), "[49152, 576]");
}

TEST(Shape, ScalarHasOneElementAndAZeroSizeNone) {
  EXPECT_EQ(checked_numel({}), 1);
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(checked_numel({3, 0, 5}), 0);
  EXPECT_EQ(numel({3, 0, 5}), 0);
  EXPECT_EQ(numel({3, 4}), 12);
}

TEST(Shape, ProductThatDoesNotFitIn63BitsIsNothing) {
  EXPECT_EQ(checked_numel({kTwo31, kTwo31}), kTwo31 * kTwo31);
  EXPECT_EQ(checked_numel({kTwo31, kTwo32}), std::nullopt);
  EXPECT_EQ(checked_numel({kTwo32, kTwo32}), std::nullopt) << "2^64 wraps to 0";
  EXPECT_EQ(checked_numel({std::numeric_limits<std::int64_t>::max()}), std::numeric_limits<std::int64_t>::max());
}

TEST(Shape, ZeroDoesNotHideStridesThatOverflow) {
  EXPECT_EQ(checked_numel({0, kTwo32, kTwo32}), std::nullopt);
  EXPECT_EQ(checked_numel({kTwo32, kTwo32, 0}), std::nullopt);
}

TEST(Shape, NegativeSizeIsNothing) {
  EXPECT_EQ(checked_numel({-8}), std::nullopt);
  EXPECT_EQ(checked_numel({-8, -8}), std::nullopt);
  EXPECT_EQ(checked_bytes({-8}, DType::kF32), std::nullopt);
}

TEST(Shape, BytesCountPackedElements) {
  EXPECT_EQ(checked_bytes({2, 6}, DType::kF4), 6U);
  EXPECT_EQ(checked_bytes({4}, DType::kF6E2M3), 3U);
  EXPECT_EQ(checked_bytes({5}, DType::kBF16), 10U);
  EXPECT_EQ(checked_bytes({}, DType::kF64), 8U);
  EXPECT_EQ(checked_bytes({0, 7}, DType::kF4), 0U);
}

TEST(Shape, PackedElementsThatDoNotFillBytesAreNothing) {
  EXPECT_EQ(checked_bytes({3}, DType::kF4), std::nullopt);
  EXPECT_EQ(checked_bytes({5}, DType::kF6E3M2), std::nullopt);
  EXPECT_EQ(checked_bytes({8}, DType::kF6E3M2), 6U);
}

TEST(Shape, BytesThatDoNotFitIn63BitsAreNothing) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(checked_bytes({kMax}, DType::kU8), static_cast<std::uint64_t>(kMax));
  EXPECT_EQ(checked_bytes({kMax / 4 + 1}, DType::kF32), std::nullopt);
  EXPECT_EQ(checked_bytes({kMax / 4}, DType::kF32), static_cast<std::uint64_t>(kMax / 4) * 4);
  EXPECT_EQ(checked_bytes({kMax - 1}, DType::kF4), static_cast<std::uint64_t>(kMax - 1) / 2)
      << "the number of bits overflows, the number of bytes does not";
}

} // namespace
} // namespace tieshard

#include "tieshard/core/ties/stored_copies.h"

#include <bit>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using testing::as_bf16;
using testing::bytes_of;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::FixtureTensor;

std::optional<StoredDifference> compare(FixtureTensor a, FixtureTensor b) {
  a.name = "a";
  b.name = "b";
  CheckpointFixture fixture;
  fixture.write({a, b});
  const Checkpoint checkpoint = fixture.open();
  return first_difference(checkpoint, *checkpoint.find("a"), *checkpoint.find("b"));
}

TEST(FirstDifference, IsNothingForEqualBytesOfAnyDtype) {
  EXPECT_FALSE(compare(counting("", {3, 5}), counting("", {3, 5})).has_value());
  const FixtureTensor packed{"", DType::kF4, {4}, {std::byte{0x21}, std::byte{0x43}}};
  EXPECT_FALSE(compare(packed, packed).has_value());
  EXPECT_FALSE(compare(counting("", {0, 5}), counting("", {0, 5})).has_value());
}

TEST(FirstDifference, FindsTheElementBeyondTheFirstBlock) {
  const std::int64_t columns = 1000;
  const FixtureTensor a = counting("", {700, columns}); // 2.7 MiB: three blocks
  for (const std::size_t element : {std::size_t{0}, std::size_t{262143}, std::size_t{262144}, std::size_t{699999}}) {
    FixtureTensor b = a;
    b.bytes[element * 4 + 3] ^= std::byte{0x80}; // the sign
    b.bytes[699999 * 4 + 3] = a.bytes[699999 * 4 + 3] ^ std::byte{0x80};
    const auto difference = compare(a, b);
    ASSERT_TRUE(difference.has_value());
    EXPECT_THAT(
        difference->index,
        ElementsAre(static_cast<std::int64_t>(element) / columns, static_cast<std::int64_t>(element) % columns));
  }
}

TEST(FirstDifference, ComparesAcrossDtypesByValue) {
  EXPECT_FALSE(compare(counting("", {4, 4}), as_bf16(counting("", {4, 4}))).has_value());
  FixtureTensor other = as_bf16(counting("", {4, 4}));
  other.bytes[2 * 9] ^= std::byte{0x01};
  const auto difference = compare(counting("", {4, 4}), other);
  ASSERT_TRUE(difference.has_value());
  EXPECT_THAT(difference->index, ElementsAre(2, 1));
  EXPECT_EQ(difference->first, "9");
}

TEST(FirstDifference, TakesANaNForEqualToANaNAcrossDtypes) {
  const FixtureTensor single{"", DType::kF32, {1}, bytes_of<float>({std::nanf("")})};
  const FixtureTensor wide{"", DType::kF64, {1}, bytes_of<double>({std::nan("")})};
  EXPECT_FALSE(compare(single, wide).has_value());
  const FixtureTensor number{"", DType::kF64, {1}, bytes_of<double>({1.0})};
  EXPECT_TRUE(compare(single, number).has_value());
}

TEST(FirstDifference, CallsDtypesWithoutACommonValueDifferent) {
  const FixtureTensor eight{"", DType::kF8E4M3, {2}, {std::byte{0x38}, std::byte{0}}};
  const auto difference = compare(eight, as_bf16(counting("", {2})));
  ASSERT_TRUE(difference.has_value());
  EXPECT_THAT(difference->index, ElementsAre(0));
  EXPECT_EQ(difference->first, "F8_E4M3 0x38");
}

} // namespace
} // namespace tieshard

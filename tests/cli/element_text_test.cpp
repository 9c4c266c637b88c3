#include "tieshard/cli/element_text.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard::cli {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ElementTexts, GivesTheShortestTextThatReadsBackOrTheExactOne) {
  const auto bytes = bytes_of<float>({0.1F, -2.0F});
  EXPECT_THAT(element_texts(bytes, DType::kF32, 2, FloatText::kShortest), ElementsAre("0.1", "-2"));
  EXPECT_THAT(element_texts(bytes, DType::kF32, 2, FloatText::kExact), ElementsAre("0.10000000149011612", "-2"));
}

TEST(ElementTexts, ReadsEveryWideFloat) {
  EXPECT_THAT(element_texts(bytes_of<double>({0.1}), DType::kF64, 1, FloatText::kExact), ElementsAre("0.1"));
  EXPECT_THAT(element_texts(bytes_of<std::uint16_t>({0x3FC0}), DType::kBF16, 1, FloatText::kExact), ElementsAre("1.5"));
  EXPECT_THAT(element_texts(bytes_of<std::uint16_t>({0xBE00}), DType::kF16, 1, FloatText::kExact), ElementsAre("-1.5"));
}

TEST(ElementTexts, NamesWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(element_texts(bytes_of<float>({kInfinity, -kInfinity, std::nanf("")}), DType::kF32, 3, FloatText::kExact),
              ElementsAre("inf", "-inf", "nan"));
}

TEST(ElementTexts, ReadsIntegersWithTheirSignAndBooleans) {
  EXPECT_THAT(element_texts(bytes_of<std::int8_t>({-128, 127}), DType::kI8, 2, FloatText::kExact),
              ElementsAre("-128", "127"));
  EXPECT_THAT(element_texts(bytes_of<std::uint8_t>({255}), DType::kU8, 1, FloatText::kExact), ElementsAre("255"));
  EXPECT_THAT(element_texts(bytes_of<std::uint64_t>({~0ULL}), DType::kU64, 1, FloatText::kExact),
              ElementsAre("18446744073709551615"));
  EXPECT_THAT(element_texts(bytes_of<std::uint64_t>({~0ULL}), DType::kI64, 1, FloatText::kExact), ElementsAre("-1"));
  EXPECT_THAT(element_texts(bytes_of<std::uint8_t>({0, 1}), DType::kBool, 2, FloatText::kExact),
              ElementsAre("false", "true"));
}

TEST(ElementTexts, ShowsOtherDtypesAsHexadecimalWords) {
  EXPECT_THAT(element_texts(bytes_of<std::uint8_t>({0x3A, 0x07}), DType::kF8E4M3, 2, FloatText::kExact),
              ElementsAre("0x3a", "0x07"));
  EXPECT_THAT(element_texts(bytes_of<std::uint64_t>({0x0102030405060708}), DType::kC64, 1, FloatText::kExact),
              ElementsAre("0x0102030405060708"));
  EXPECT_FALSE(shown_as_number(DType::kF4));
  EXPECT_TRUE(shown_as_number(DType::kBF16));
}

TEST(ElementTexts, StopsAtTheCountAndAtTheEndOfTheBytes) {
  const auto bytes = bytes_of<float>({1.0F, 2.0F});
  EXPECT_THAT(element_texts(bytes, DType::kF32, 1, FloatText::kExact), ElementsAre("1"));
  EXPECT_THAT(element_texts(bytes, DType::kF32, 9, FloatText::kExact), ElementsAre("1", "2"));
  EXPECT_THAT(element_texts(bytes, DType::kF32, 0, FloatText::kExact), IsEmpty());
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/core/io/init_slice.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::raised;

constexpr InitRule kNormal{.kind = InitRule::Kind::kNormal, .a = 0.0, .b = 0.02, .seed = 7};

template <typename Element>
std::vector<Element> filled(const InitSlice& slice, DType dtype) {
  Shape local = slice.shape;
  if (slice.dim >= 0) {
    local[static_cast<std::size_t>(slice.dim)] = slice.chunk.size;
  }
  std::vector<Element> values(static_cast<std::size_t>(numel(local)));
  fill_slice(slice, reinterpret_cast<std::byte*>(values.data()), dtype);
  return values;
}

std::vector<float> whole(const InitRule& rule, const Shape& shape, const std::string& name = "w") {
  return filled<float>({.fqn = name, .rule = rule, .shape = shape}, DType::kF32);
}

/// The published answers of the reference implementation (Random123, kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U));
  constexpr std::uint32_t kOnes = 0xffffffffU;
  EXPECT_THAT(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU));
  EXPECT_THAT(philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}),
              ElementsAre(0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U));
}

TEST(FillSlice, GivesAnElementItsValueWhateverTheRanksAndTheDimension) {
  const Shape shape = {5, 6, 7};
  for (const InitRule& rule : {kNormal, InitRule{.kind = InitRule::Kind::kUniform, .a = -1.0, .b = 2.0}}) {
    const std::vector<float> all = whole(rule, shape);
    for (int dim = 0; dim < 3; ++dim) {
      const std::int64_t size = shape[static_cast<std::size_t>(dim)];
      const std::size_t inner = dim == 0 ? 42 : dim == 1 ? 7 : 1;
      for (std::int64_t ranks = 1; ranks <= 5; ++ranks) {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const ChunkRange chunk = chunk_range(size, ranks, rank);
          std::vector<float> expected;
          for (std::size_t i = 0; i < all.size(); ++i) {
            const std::int64_t at = static_cast<std::int64_t>(i / inner) % size;
            if (at >= chunk.offset && at < chunk.offset + chunk.size) {
              expected.push_back(all[i]);
            }
          }
          const InitSlice slice{.fqn = "w", .rule = rule, .shape = shape, .dim = dim, .chunk = chunk};
          EXPECT_EQ(filled<float>(slice, DType::kF32), expected) << dim << " " << rank << "/" << ranks;
        }
      }
    }
  }
}

TEST(FillSlice, HasTheMomentsThatTheRuleAsksFor) {
  const InitRule rule{.kind = InitRule::Kind::kNormal, .a = 1.0, .b = 0.5, .seed = 3};
  const std::vector<float> values = whole(rule, {400, 500});
  const double count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double square = 0.0;
  double fourth = 0.0;
  for (const float value : values) {
    square += std::pow(value - mean, 2) / count;
    fourth += std::pow(value - mean, 4) / count;
  }
  EXPECT_NEAR(mean, 1.0, 5 * 0.5 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(square), 0.5, 0.005);
  EXPECT_NEAR(fourth / (square * square), 3.0, 0.06); // the kurtosis of a normal distribution
}

TEST(FillSlice, StaysWithinTheBoundsOfAUniformRule) {
  const InitRule rule{.kind = InitRule::Kind::kUniform, .a = -0.25, .b = 0.75};
  const std::vector<float> values = whole(rule, {100'000});
  EXPECT_THAT(values, Each(::testing::AllOf(::testing::Ge(-0.25F), ::testing::Le(0.75F))));
  EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0) / 100'000, 0.25, 0.005);
}

TEST(FillSlice, DiffersBetweenParametersAndSeeds) {
  InitRule other = kNormal;
  other.seed = 8;
  EXPECT_NE(whole(kNormal, {64}), whole(kNormal, {64}, "v"));
  EXPECT_NE(whole(kNormal, {64}), whole(other, {64}));
  EXPECT_EQ(whole(kNormal, {64}), whole(kNormal, {8, 8})); // the flat index counts
}

TEST(FillSlice, FillsEveryWideFloatAndConstantsExactly) {
  const InitSlice ones{.fqn = "w", .rule = {.a = 1.0}, .shape = {3}};
  EXPECT_THAT(filled<double>(ones, DType::kF64), Each(1.0));
  EXPECT_THAT(filled<std::uint16_t>(ones, DType::kBF16), Each(0x3F80));
  EXPECT_THAT(filled<std::uint16_t>(ones, DType::kF16), Each(0x3C00));
  EXPECT_THAT(filled<float>({.fqn = "s", .rule = {.a = -2.5}, .shape = {}}, DType::kF32), ElementsAre(-2.5F));
}

TEST(FillSlice, RefusesADtypeThatIsNoWideFloat) {
  std::byte byte{};
  const auto refused =
      raised<UsageError>([&byte] { fill_slice({.fqn = "w", .rule = {}, .shape = {1}}, &byte, DType::kI8); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kNotConvertible);
}

} // namespace
} // namespace tieshard

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/models/rotary_embedding.h"

namespace tieshard::testing {
namespace {

constexpr std::int64_t kHeadDim = 16;

/// base^(-2i/d), in float64.
double plain_frequency(double theta, std::int64_t index) {
  return std::pow(theta, -2.0 * static_cast<double>(index) / kHeadDim);
}

void expect_frequencies(const RopeConfig& rope, const std::function<double(std::int64_t)>& expected) {
  const RotaryEmbedding rotary(kHeadDim, rope);
  ASSERT_EQ(rotary->inv_freq.sizes().vec(), std::vector<std::int64_t>{kHeadDim / 2});
  ASSERT_EQ(rotary->inv_freq.scalar_type(), at::kFloat);
  for (std::int64_t index = 0; index < kHeadDim / 2; ++index) {
    const double wanted = expected(index);
    EXPECT_NEAR(rotary->inv_freq[index].item<double>(), wanted, 1e-6 * wanted) << index;
  }
}

TEST(RotaryFrequencies, FallGeometricallyByDefault) {
  for (const double theta : {10000.0, 500000.0}) {
    expect_frequencies({.theta = theta}, [&](std::int64_t index) { return plain_frequency(theta, index); });
  }
}

TEST(RotaryFrequencies, AreDividedByTheFactorWhenLinear) {
  expect_frequencies({.type = "linear", .theta = 10000.0, .factor = 4.0},
                     [](std::int64_t index) { return plain_frequency(10000.0, index) / 4.0; });
}

TEST(RotaryFrequencies, OfLlama3KeepShortDivideLongAndBlendMiddleWavelengths) {
  const RopeConfig rope{.type = "llama3",
                        .theta = 10000.0,
                        .factor = 8.0,
                        .low_freq_factor = 1.0,
                        .high_freq_factor = 4.0,
                        .original_max_position_embeddings = 256};
  int kept = 0;
  int divided = 0;
  int blended = 0;
  expect_frequencies(rope, [&](std::int64_t index) {
    const double frequency = plain_frequency(rope.theta, index);
    const double turns = 256.0 * frequency / (2 * std::numbers::pi); // in the original context
    if (turns > rope.high_freq_factor) {
      ++kept;
      return frequency;
    }
    if (turns < rope.low_freq_factor) {
      ++divided;
      return frequency / rope.factor;
    }
    ++blended;
    const double share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    return frequency * (share + (1 - share) / rope.factor);
  });
  EXPECT_GT(kept, 0); // each of the three bands is seen
  EXPECT_GT(divided, 0);
  EXPECT_GT(blended, 0);
}

TEST(RotaryEmbedding, TurnsEachPairByPositionTimesFrequency) {
  const RotaryEmbedding rotary(kHeadDim, RopeConfig{});
  constexpr std::int64_t kLength = 7;
  const RotaryAngles angles = rotary->forward(at::arange(kLength), at::kFloat);
  ASSERT_EQ(angles.cos.sizes().vec(), (std::vector<std::int64_t>{kLength, kHeadDim}));
  const at::Tensor x = at::arange(kLength * kHeadDim, at::kFloat).view({1, 1, kLength, kHeadDim}) * 0.01 - 0.3;
  const at::Tensor y = apply_rotary(x, angles);
  for (std::int64_t position = 0; position < kLength; ++position) {
    for (std::int64_t index = 0; index < kHeadDim / 2; ++index) {
      const double angle = static_cast<double>(position) * plain_frequency(10000.0, index);
      const auto at_index = [&](const at::Tensor& tensor, std::int64_t column) {
        return tensor.index({0, 0, position, column}).item<double>();
      };
      const double first = at_index(x, index);
      const double second = at_index(x, index + kHeadDim / 2);
      EXPECT_NEAR(at_index(y, index), first * std::cos(angle) - second * std::sin(angle), 2e-6);
      EXPECT_NEAR(at_index(y, index + kHeadDim / 2), second * std::cos(angle) + first * std::sin(angle), 2e-6);
    }
  }
}

TEST(RotaryEmbedding, ComputesAnglesInFloat32AlsoForABfloat16Model) {
  const RotaryEmbedding rotary(kHeadDim, RopeConfig{});
  const auto [cos, sin] = rotary->forward(at::arange(1000), at::kFloat);
  const auto [half_cos, half_sin] = rotary->forward(at::arange(1000), at::kBFloat16);
  EXPECT_EQ(half_cos.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(half_cos, cos.to(at::kBFloat16))); // rounded once, at the end
  EXPECT_TRUE(at::equal(half_sin, sin.to(at::kBFloat16)));
}

} // namespace
} // namespace tieshard::testing

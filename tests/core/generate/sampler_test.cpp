#include "tieshard/core/generate/sampler.h"

#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::int64_t> tokens_of(const std::vector<TokenChance>& chances) {
  std::vector<std::int64_t> tokens;
  for (const TokenChance& chance : chances) {
    tokens.push_back(chance.token);
  }
  return tokens;
}

/// Logits of the probabilities 0.1, 0.4, 0.2, 0.3.
const std::vector<float> kLogits{std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};

TEST(Sampler, GreedyTakesTheLikeliestAndOfEqualOnesTheFirst) {
  Sampler sampler({});
  EXPECT_EQ(sampler.next(kLogits), 1);
  EXPECT_EQ(sampler.next(std::vector<float>{-1, 3, 3, -kInfinity}), 1);
}

TEST(Chances, AreTheSoftmaxOfTheLogits) {
  const auto all = chances(kLogits, {.greedy = false});
  EXPECT_THAT(tokens_of(all), ElementsAre(1, 3, 2, 0));
  EXPECT_THAT(all[0].probability, DoubleNear(0.4, 1e-6));
  EXPECT_THAT(all[3].probability, DoubleNear(0.1, 1e-6));
}

TEST(Chances, AreSharperAtALowTemperature) {
  const auto all = chances(kLogits, {.greedy = false, .temperature = 0.5}); // squares: 0.16, 0.09, 0.04, 0.01
  EXPECT_THAT(all[0].probability, DoubleNear(0.16 / 0.30, 1e-6));
  EXPECT_THAT(all[1].probability, DoubleNear(0.09 / 0.30, 1e-6));
}

TEST(Chances, KeepTheTopKAndWhatIsAsLikelyAsTheLast) {
  EXPECT_THAT(tokens_of(chances(kLogits, {.greedy = false, .top_k = 2})), ElementsAre(1, 3));
  EXPECT_THAT(chances(kLogits, {.greedy = false, .top_k = 2})[0].probability, DoubleNear(4.0 / 7, 1e-6));
  EXPECT_THAT(tokens_of(chances(std::vector<float>{1, 2, 1, 1}, {.greedy = false, .top_k = 2})),
              ElementsAre(1, 0, 2, 3));
  EXPECT_EQ(chances(kLogits, {.greedy = false, .top_k = 9}).size(), 4U);
}

TEST(Chances, KeepTheFewestThatReachTopP) {
  EXPECT_THAT(tokens_of(chances(kLogits, {.greedy = false, .top_p = 0.35})), ElementsAre(1));
  EXPECT_THAT(tokens_of(chances(kLogits, {.greedy = false, .top_p = 0.45})), ElementsAre(1, 3));
  EXPECT_THAT(tokens_of(chances(kLogits, {.greedy = false, .top_p = 0.75})), ElementsAre(1, 3, 2));
  EXPECT_THAT(tokens_of(chances(kLogits, {.greedy = false, .top_p = 1e-9})), ElementsAre(1));
  // after top-k, of what that left: 4/7 and 3/7
  EXPECT_THAT(tokens_of(chances(kLogits, {.greedy = false, .top_k = 2, .top_p = 0.5})), ElementsAre(1));
}

TEST(Sampler, ChoosesAsOftenAsIsLikelyAndTheSameByTheSeed) {
  constexpr int kDraws = 20'000;
  std::map<std::int64_t, int> count;
  Sampler one({.greedy = false, .seed = 5});
  Sampler two({.greedy = false, .seed = 5});
  Sampler other({.greedy = false, .seed = 6});
  int differs = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const std::int64_t token = one.next(kLogits);
    EXPECT_EQ(token, two.next(kLogits));
    differs += token != other.next(kLogits) ? 1 : 0;
    ++count[token];
  }
  EXPECT_GT(differs, 0);
  for (const auto& [token, expected] : std::map<std::int64_t, double>{{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}}) {
    EXPECT_NEAR(static_cast<double>(count[token]) / kDraws, expected, 0.02) << token; // six standard deviations
  }
}

TEST(Sampler, NeverTakesATokenOfNoChanceAndRefusesLogitsThatChooseNone) {
  Sampler sampler({.greedy = false, .seed = 1});
  for (int draw = 0; draw < 100; ++draw) {
    EXPECT_EQ(sampler.next(std::vector<float>{-kInfinity, 2, -kInfinity}), 1);
  }
  for (const bool greedy : {true, false}) {
    Sampler refuses({.greedy = greedy});
    const auto refused = [&](const std::vector<float>& logits, const std::string& why) {
      expect_refusal([&] { refuses.next(logits); }, Code::kNotFinite, {why});
    };
    refused({0, std::nanf(""), 1}, "token 1");
    refused({0, 1, kInfinity}, "token 2");
    refused({-kInfinity, -kInfinity}, "-inf for every token");
  }
}

} // namespace
} // namespace tieshard::testing

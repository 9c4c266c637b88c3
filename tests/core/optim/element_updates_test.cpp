// The arithmetic against the published formulas, written here once more in float64; and what holds of all of it: no bit
// hangs on where an element lies or on how wide the processor's vectors are.

#include "tieshard/core/optim/element_updates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tieshard/core/base/float_formats.h"

namespace tieshard::testing {
namespace {

constexpr int kSteps = 20;
constexpr std::size_t kCount = 200; // three blocks and a rest
constexpr double kBound = 1e-6;

float gradient_at(std::size_t index, int step) {
  return std::cos(static_cast<float>(index) * 1.7F + static_cast<float>(step));
}

std::vector<float> start_values(std::size_t count = kCount) {
  std::vector<float> values(count);
  for (std::size_t index = 0; index < count; ++index) {
    values[index] = std::sin(static_cast<float>(index));
  }
  return values;
}

/// The state of one element in the formulas.
struct Exact {
  double w = 0;
  double first = 0;
  double second = 0;
  double third = 0;
};

using ExactStep = std::function<void(Exact&, double gradient, int step)>;

template <typename Rule>
void expect_follows(const std::function<Rule(int step)>& rule, const ExactStep& exact) {
  std::vector<float> w = start_values();
  std::array<std::vector<float>, 3> moments;
  moments.fill(std::vector<float>(kCount));
  std::vector<Exact> expected(kCount);
  for (std::size_t index = 0; index < kCount; ++index) {
    expected[index].w = static_cast<double>(w[index]);
  }
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<float> gradient(kCount);
    for (std::size_t index = 0; index < kCount; ++index) {
      gradient[index] = gradient_at(index, step);
      exact(expected[index], static_cast<double>(gradient[index]), step);
    }
    update(rule(step),
           Float32Elements{.parameter = w.data(),
                           .gradient = gradient.data(),
                           .moments = {moments[0].data(), moments[1].data(), moments[2].data()},
                           .count = kCount});
  }
  float moved = 0;
  for (std::size_t index = 0; index < kCount; ++index) {
    EXPECT_NEAR(w[index], expected[index].w, kBound) << index;
    moved = std::max(moved, std::abs(w[index] - start_values()[index]));
  }
  EXPECT_GT(moved, 1e-3) << "nothing was stepped";
}

TEST(AdamWElements, FollowTheFormula) {
  for (const bool amsgrad : {false, true}) {
    expect_follows<AdamWUpdate>(
        [&](int step) {
          return adamw_update(
              {.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.3, .amsgrad = amsgrad}, step);
        },
        [&](Exact& e, double g, int step) {
          e.w *= 1 - 1e-2 * 0.3;
          e.first = 0.8 * e.first + 0.2 * g;
          e.second = 0.95 * e.second + 0.05 * g * g;
          e.third = std::max(e.third, e.second);
          const double square = (amsgrad ? e.third : e.second) / (1 - std::pow(0.95, step));
          e.w -= 1e-2 * (e.first / (1 - std::pow(0.8, step))) / (std::sqrt(square) + 1e-6);
        });
  }
}

TEST(SgdElements, FollowTheFormula) {
  expect_follows<SgdUpdate>([](int) { return SgdUpdate{.lr = 1e-2F, .weight_decay = 0.1F}; },
                            [](Exact& e, double g, int) { e.w -= 1e-2 * (g + 0.1 * e.w); });
  for (const bool nesterov : {false, true}) {
    expect_follows<SgdUpdate>(
        [&](int step) {
          return SgdUpdate{.lr = 1e-3F, .momentum = 0.9F, .taken = step == 1 ? 1.0F : 0.75F, .nesterov = nesterov};
        },
        [&](Exact& e, double g, int step) {
          e.first = step == 1 ? g : 0.9 * e.first + 0.75 * g;
          e.w -= 1e-3 * (nesterov ? g + 0.9 * e.first : e.first);
        });
  }
}

TEST(LionElements, FollowTheFormula) {
  expect_follows<LionUpdate>([](int) { return LionUpdate{.lr = 1e-3F, .decay = 1.0F - 1e-3F * 0.1F}; },
                             [](Exact& e, double g, int) {
                               const double blend = 0.9 * e.first + 0.1 * g;
                               e.w -= 1e-3 * ((blend > 0 ? 1 : blend < 0 ? -1 : 0) + 0.1 * e.w);
                               e.first = 0.99 * e.first + 0.01 * g;
                             });
}

TEST(LionElements, StandStillWithoutASlopeAndPassNotANumberOn) {
  std::array<float, 2> w{2.0F, 2.0F};
  std::array<float, 2> mean{0.0F, 0.0F};
  const std::array<float, 2> gradient{0.0F, std::numeric_limits<float>::quiet_NaN()};
  update(
      LionUpdate{.lr = 0.5F},
      Float32Elements{.parameter = w.data(), .gradient = gradient.data(), .moments = {mean.data()}, .count = w.size()});
  EXPECT_EQ(w[0], 2.0F);
  EXPECT_TRUE(std::isnan(w[1]));
}

/// Every kind of update on arrays in bfloat16 or float32, as a function of the elements.
template <typename Elements>
std::vector<std::function<void(const Elements&)>> all_updates() {
  return {[](const Elements& e) {
            update(adamw_update({.lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1, .amsgrad = false}, 3), e);
          },
          [](const Elements& e) {
            update(adamw_update({.lr = 1e-2, .beta2 = 0.99, .weight_decay = 0.1, .amsgrad = true}, 3), e);
          },
          [](const Elements& e) { update(SgdUpdate{.lr = 1e-2F, .weight_decay = 0.1F}, e); },
          [](const Elements& e) { update(SgdUpdate{.lr = 1e-2F, .momentum = 0.9F}, e); },
          [](const Elements& e) { update(SgdUpdate{.lr = 1e-2F, .momentum = 0.9F, .nesterov = true}, e); },
          [](const Elements& e) { update(LionUpdate{.lr = 1e-2F, .decay = 0.99F}, e); }};
}

template <typename Element>
struct Arrays {
  std::vector<Element> parameter;
  std::vector<Element> gradient;
  std::array<std::vector<float>, 3> moments;
  std::vector<float> master;
};

Arrays<float> float_arrays() {
  Arrays<float> arrays;
  arrays.parameter = start_values();
  for (std::size_t index = 0; index < kCount; ++index) {
    arrays.gradient.push_back(gradient_at(index, 1));
  }
  for (std::vector<float>& moment : arrays.moments) {
    for (std::size_t index = 0; index < kCount; ++index) {
      moment.push_back(0.01F * static_cast<float>(index + 1));
    }
  }
  return arrays;
}

std::vector<std::uint16_t> narrowed(const std::vector<float>& values) {
  std::vector<std::uint16_t> narrow;
  std::ranges::transform(values, std::back_inserter(narrow), BFloat16Format::encode);
  return narrow;
}

std::vector<float> widened(const std::vector<std::uint16_t>& values) {
  std::vector<float> wide;
  std::ranges::transform(values, std::back_inserter(wide), BFloat16Format::decode);
  return wide;
}

Arrays<std::uint16_t> bfloat16_arrays() {
  const Arrays<float> wide = float_arrays();
  return {.parameter = narrowed(wide.parameter),
          .gradient = narrowed(wide.gradient),
          .moments = wide.moments,
          .master = wide.parameter};
}

template <typename Elements, typename Element>
Elements part_of(Arrays<Element>& arrays, std::size_t begin, std::size_t count) {
  Elements elements;
  elements.parameter = arrays.parameter.data() + begin;
  elements.gradient = arrays.gradient.data() + begin;
  for (std::size_t index = 0; index < 3; ++index) {
    elements.moments[index] = arrays.moments[index].data() + begin;
  }
  elements.count = count;
  return elements;
}

TEST(ElementUpdates, GiveTheSameBitsWhereverAnElementLies) {
  for (const auto& apply : all_updates<Float32Elements>()) {
    Arrays<float> together = float_arrays();
    Arrays<float> apart = float_arrays();
    apply(part_of<Float32Elements>(together, 0, kCount));
    for (std::size_t index = 0; index < kCount; ++index) { // each in a loop that is too short for vectors
      apply(part_of<Float32Elements>(apart, index, 1));
    }
    EXPECT_EQ(together.parameter, apart.parameter);
    EXPECT_EQ(together.moments, apart.moments);
  }
}

TEST(BFloat16Updates, AreTheFloat32OnesRoundedToNearest) {
  const auto wide_updates = all_updates<Float32Elements>();
  const auto updates = all_updates<BFloat16Elements>();
  for (std::size_t kind = 0; kind < updates.size(); ++kind) {
    Arrays<std::uint16_t> narrow = bfloat16_arrays();
    Arrays<float> wide = float_arrays();
    wide.parameter = widened(narrow.parameter);
    wide.gradient = widened(narrow.gradient);
    updates[kind](part_of<BFloat16Elements>(narrow, 0, kCount));
    wide_updates[kind](part_of<Float32Elements>(wide, 0, kCount));
    EXPECT_EQ(narrow.parameter, narrowed(wide.parameter)) << kind;
    EXPECT_EQ(narrow.moments, wide.moments) << kind;
  }
}

TEST(BFloat16Updates, WithMasterWeightsAreFloat32OnesOfThem) {
  const auto wide_updates = all_updates<Float32Elements>();
  const auto updates = all_updates<BFloat16Elements>();
  for (std::size_t kind = 0; kind < updates.size(); ++kind) {
    Arrays<std::uint16_t> narrow = bfloat16_arrays();
    Arrays<float> wide = float_arrays();
    wide.gradient = widened(narrow.gradient);
    for (int step = 0; step < 3; ++step) {
      BFloat16Elements elements = part_of<BFloat16Elements>(narrow, 0, kCount);
      elements.master = narrow.master.data();
      updates[kind](elements);
      wide_updates[kind](part_of<Float32Elements>(wide, 0, kCount));
    }
    EXPECT_EQ(narrow.master, wide.parameter) << kind;
    EXPECT_EQ(narrow.parameter, narrowed(wide.parameter)) << kind;
  }
}

/// One plain step of SGD on `count` equal elements, rounded at random.
std::vector<float> rounded_step(float start, float step, std::size_t count, StochasticRounding rounding) {
  std::vector<std::uint16_t> w(count, BFloat16Format::encode(start));
  const std::vector<std::uint16_t> gradient(count, BFloat16Format::encode(step));
  update(SgdUpdate{.lr = 1.0F},
         BFloat16Elements{.parameter = w.data(), .gradient = gradient.data(), .count = count, .rounding = rounding});
  return widened(w);
}

TEST(StochasticRounding, KeepsOnAverageWhatNearestLoses) {
  constexpr std::size_t kMany = 100'000;
  constexpr float kUnit = 1.0F / 128; // between neighbours above 1
  const std::vector<float> rounded = rounded_step(1.0F, -kUnit / 8, kMany, {.key = 5});
  const auto up = static_cast<double>(std::ranges::count(rounded, 1.0F + kUnit));
  EXPECT_EQ(up + static_cast<double>(std::ranges::count(rounded, 1.0F)), kMany); // a neighbour, nothing else
  const double deviation = std::sqrt(kMany * (1.0 / 8) * (7.0 / 8));
  EXPECT_NEAR(up, kMany / 8.0, 5 * deviation);
}

TEST(StochasticRounding, LeavesWhatABfloat16HoldsAlone) {
  for (const float value : {1.0F, -3.0F, 0.0F, -0x1.FEp127F}) {
    for (const float rounded : rounded_step(value, 0.0F, 300, {.key = 9})) {
      EXPECT_EQ(rounded, value);
    }
  }
  for (const float rounded : rounded_step(-std::bit_cast<float>(0x7FFFFFFFU), 0.0F, 300, {.key = 9})) {
    EXPECT_TRUE(std::isnan(rounded));
  }
}

TEST(StochasticRounding, HangsOnKeyAndIndexOnly) {
  constexpr std::size_t kMany = 1000;
  const StochasticRounding whole{.key = 77, .index = (std::uint64_t{1} << 32) - 300}; // the index outgrows 32 bits
  const std::vector<float> expected = rounded_step(1.0F, 1e-3F, kMany, whole);
  EXPECT_EQ(rounded_step(1.0F, 1e-3F, kMany, whole), expected);
  std::vector<float> joined;
  for (const auto& [begin, count] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 1}, {1, 499}, {500, 500}}) {
    const std::vector<float> part = rounded_step(1.0F, 1e-3F, count, {.key = 77, .index = whole.index + begin});
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, expected);
  EXPECT_NE(rounded_step(1.0F, 1e-3F, kMany, {.key = 78, .index = whole.index}), expected);
  EXPECT_NE(rounded_step(1.0F, 1e-3F, kMany, {.key = 77, .index = 0}), expected);
}

TEST(Mix, TellsItsArgumentsApart) {
  EXPECT_NE(mix(1, 2), mix(2, 1));
  EXPECT_NE(mix(0, 0), mix(0, 1));
  EXPECT_EQ(mix(3, 4), mix(3, 4));
}

} // namespace
} // namespace tieshard::testing

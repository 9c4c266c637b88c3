// What holds of every schedule. tests/python/test_optimizer_flags.py compares the rates of a run with transformers'.

#include "tieshard/core/optim/lr_schedule.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

LrScheduleOptions options_of(LrScheduleKind kind) {
  LrScheduleOptions options{.kind = kind, .warmup = 10, .total = 100};
  if (kind == LrScheduleKind::kWsd) {
    options.decay = 20;
  }
  return options;
}

constexpr LrScheduleKind kAllKinds[] = {LrScheduleKind::kConstant,
                                        LrScheduleKind::kLinear,
                                        LrScheduleKind::kCosine,
                                        LrScheduleKind::kWsd,
                                        LrScheduleKind::kInverseSqrt};

TEST(LrSchedule, WarmsUpFromNothingToTheWholeRateOnALine) {
  for (const LrScheduleKind kind : kAllKinds) {
    const LrSchedule schedule(options_of(kind));
    for (int step = 0; step <= 10; ++step) {
      EXPECT_DOUBLE_EQ(schedule.factor(step), step / 10.0) << static_cast<int>(kind);
    }
  }
}

TEST(LrSchedule, NeverRisesAgainAndStaysAtTheMinimumPastTheEnd) {
  for (const LrScheduleKind kind : kAllKinds) {
    LrScheduleOptions options = options_of(kind);
    options.min_ratio = kind == LrScheduleKind::kConstant ? 0 : 0.125;
    const LrSchedule schedule(options);
    for (int step = 10; step < 1000; ++step) {
      EXPECT_LE(schedule.factor(step + 1), schedule.factor(step)) << static_cast<int>(kind) << " at " << step;
    }
    EXPECT_DOUBLE_EQ(schedule.factor(1000), kind == LrScheduleKind::kConstant ? 1.0 : 0.125);
  }
}

TEST(LrSchedule, HasTheValuesThatItsFormulaGives) {
  EXPECT_DOUBLE_EQ(LrSchedule(options_of(LrScheduleKind::kLinear)).factor(55), 0.5);
  EXPECT_DOUBLE_EQ(LrSchedule(options_of(LrScheduleKind::kCosine)).factor(40), 0.75); // a third: cos is 1/2
  EXPECT_DOUBLE_EQ(LrSchedule(options_of(LrScheduleKind::kInverseSqrt)).factor(40), 0.5);
  LrScheduleOptions wsd = options_of(LrScheduleKind::kWsd);
  EXPECT_DOUBLE_EQ(LrSchedule(wsd).factor(79), 1.0);
  EXPECT_DOUBLE_EQ(LrSchedule(wsd).factor(85), 0.75);
  wsd.wsd_shape = DecayShape::kOneMinusSqrt;
  EXPECT_DOUBLE_EQ(LrSchedule(wsd).factor(85), 0.5);
  wsd.wsd_shape = DecayShape::kCosine;
  wsd.min_ratio = 0.5;
  EXPECT_DOUBLE_EQ(LrSchedule(wsd).factor(90), 0.75);
}

TEST(LrSchedule, ByTokensIsTheOneByStepsWithOtherUnits) {
  for (const LrScheduleKind kind : kAllKinds) {
    const LrScheduleOptions steps = options_of(kind);
    LrScheduleOptions tokens = steps;
    constexpr std::int64_t kTokens = 4'000'000'000; // of a step: more than 32 bits in all
    tokens.warmup *= kTokens;
    tokens.total *= kTokens;
    if (tokens.decay) {
      tokens.decay = *tokens.decay * kTokens;
    }
    for (int step = 0; step < 110; ++step) {
      EXPECT_DOUBLE_EQ(LrSchedule(tokens).factor(step * kTokens), LrSchedule(steps).factor(step));
    }
  }
}

TEST(LrSchedule, MayDecayOverLessThanTheRestOfTheRun) {
  LrScheduleOptions options = options_of(LrScheduleKind::kLinear);
  options.decay = 40;
  EXPECT_DOUBLE_EQ(LrSchedule(options).factor(30), 0.5);
  EXPECT_DOUBLE_EQ(LrSchedule(options).factor(50), 0.0);
  EXPECT_DOUBLE_EQ(LrSchedule(options).factor(99), 0.0);
}

TEST(LrSchedule, OfNoStepsIsDefined) {
  EXPECT_DOUBLE_EQ(LrSchedule({.kind = LrScheduleKind::kCosine}).factor(0), 0.0);
  EXPECT_DOUBLE_EQ(LrSchedule({}).factor(0), 1.0);
}

TEST(LrSchedule, RefusesWhatCannotBeFollowed) {
  const auto build = [](const LrScheduleOptions& options) { return [options] { const LrSchedule schedule(options); }; };
  LrScheduleOptions options = options_of(LrScheduleKind::kWsd);
  options.decay.reset();
  expect_refusal(build(options), Code::kBadFlag, {"schedule wsd", "length of the decay, got none"});
  options.decay = 91;
  expect_refusal(build(options), Code::kBadFlag, {"within the 100 of the run, got 10 and 91"});
  for (const auto& [kind, where] : {std::pair{LrScheduleKind::kCosine, "schedule cosine"},
                                    {LrScheduleKind::kConstant, "schedule constant"},
                                    {LrScheduleKind::kInverseSqrt, "schedule inverse-sqrt"}}) {
    options = options_of(kind);
    options.warmup = 101;
    expect_refusal(build(options), Code::kBadFlag, {where, "got 101 and 0"});
  }
  options = options_of(LrScheduleKind::kConstant);
  options.decay = 5;
  expect_refusal(build(options), Code::kBadFlag, {"schedule constant", "no length of a decay, got 5"});
  options = options_of(LrScheduleKind::kConstant);
  options.min_ratio = 0.1;
  expect_refusal(build(options), Code::kBadFlag, {"schedule constant", "smallest rate"});
  options = options_of(LrScheduleKind::kInverseSqrt);
  options.warmup = 0;
  expect_refusal(build(options), Code::kBadFlag, {"schedule inverse-sqrt", "expected a warm-up"});
}

TEST(LrSchedule, NamesLeadToTheirSchedules) {
  for (const LrScheduleKind kind : kAllKinds) {
    EXPECT_EQ(lr_schedule_from_name(lr_schedule_names()[static_cast<std::size_t>(kind)]), kind);
  }
  EXPECT_EQ(decay_shape_from_name("1-sqrt"), DecayShape::kOneMinusSqrt);
}

} // namespace
} // namespace tieshard::testing

#include "tieshard/core/plan/plan_choices.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tieshard/core/families/known_families.h"

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

/// The tiny Llama: 28 elements in the root, 168 in its one layer; head and embedding are one weight.
class PlanChoices : public ::testing::Test {
 protected:
  PlanChoices()
      : config_(HfConfig::parse(testing::tiny_llama_config(), "config.json")),
        table_(llama_family().table(config_)),
        ties_(TieRegistry::from_map({{"lm_head.weight", "model.embed_tokens.weight"}}, table_)) {}

  ChoiceModel model(std::int64_t ranks, std::int64_t replicas = 1) const {
    return {.table = &table_,
            .ties = &ties_,
            .ranks = ranks,
            .plan = {.units = llama_family().units(config_)},
            .sizes = activation_sizes(config_),
            .step = {.sequence = 64},
            .replicas = replicas};
  }

  HfConfig config_;
  ParameterTable table_;
  TieRegistry ties_;
};

TEST_F(PlanChoices, CountWhatIsExchangedInEachDtype) {
  const StepTraffic full = cost_of(model(2), {}).traffic;
  EXPECT_EQ(full.all_gather_bytes, 4U * (14 + 2 * 84));
  EXPECT_EQ(full.reduce_scatter_bytes, 4U * (14 + 84));
  EXPECT_EQ(full.all_reduce_bytes, 0U);
  EXPECT_EQ(full.in_flight_bytes, 4U * (28 + 168));
  const StepTraffic mixed = cost_of(model(2), {.compute_dtype = DType::kBF16}).traffic;
  EXPECT_EQ(mixed.all_gather_bytes, 2U * (14 + 2 * 84));
  EXPECT_EQ(mixed.reduce_scatter_bytes, 4U * (14 + 84)) << "gradients are reduced in the dtype of the shards";
  const StepTraffic kept = cost_of(model(2), {.reshard_after_forward = false}).traffic;
  EXPECT_EQ(kept.all_gather_bytes, 4U * (14 + 84));
  EXPECT_EQ(kept.received(), 4U * 2 * (14 + 84));
}

TEST_F(PlanChoices, ReplicasReduceTheGradientsOfTheirShards) {
  EXPECT_EQ(cost_of(model(2, 2), {}).traffic.all_reduce_bytes, 4U * 98) << "2 * (2 - 1) / 2 of 98 elements";
  EXPECT_EQ(cost_of(model(2, 4), {}).traffic.all_reduce_bytes % 4, 0U);
  EXPECT_EQ(cost_of(model(1, 3), {}).traffic.received(), cost_of(model(1, 3), {}).traffic.all_reduce_bytes);
}

TEST_F(PlanChoices, StateIsWhatPlanShows) {
  EXPECT_EQ(cost_of(model(2), {}).state_bytes, 98U * 16);
  EXPECT_EQ(cost_of(model(2), {.param_dtype = DType::kBF16, .compute_dtype = DType::kBF16}).state_bytes, 98U * 12);
}

TEST_F(PlanChoices, AreAllOfThemDifferentAndThePeaksArePredictions) {
  std::set<std::string> seen;
  for (const PlanChoice& choice : all_choices()) {
    EXPECT_TRUE(seen.insert(concat(name(choice.param_dtype),
                                   name(choice.compute_dtype),
                                   choice.reshard_after_forward,
                                   choice.policy == ShardDimPolicy::kFirst))
                    .second);
    const ChoiceCost cost = cost_of(model(2), choice);
    ASSERT_TRUE(cost.peak);
    EXPECT_GT(*cost.peak, kProcessBytes);
  }
  EXPECT_EQ(seen.size(), 12U);
  ChoiceModel unknown = model(2);
  unknown.sizes.reset();
  EXPECT_FALSE(cost_of(unknown, {}).peak);
  EXPECT_FALSE(smallest_change(unknown, {}, 1U << 30));
}

TEST_F(PlanChoices, TheSmallestChangeThatFitsIsOneFlagWhereOneIsEnough) {
  ChoiceModel large = model(2);
  large.step = {.sequence = 4096, .batch = 64}; // activations decide
  const std::uint64_t asked = *cost_of(large, {}).peak;
  EXPECT_EQ(changes({}, smallest_change(large, {}, asked)->choice), 0);
  const auto change = smallest_change(large, {}, asked - 1);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->choice, (PlanChoice{.compute_dtype = DType::kBF16}));
  EXPECT_LE(*change->peak, asked - 1);
  EXPECT_FALSE(smallest_change(large, {}, 1000));
}

TEST_F(PlanChoices, MoreRanksFitUntilThereAreTooMany) {
  const std::uint64_t two = *cost_of(model(2), {}).peak;
  EXPECT_EQ(ranks_that_fit(model(2), {}, two, 64), 2);
  EXPECT_EQ(ranks_that_fit(model(2), {}, two - 1, 64).value_or(0), *cost_of(model(4), {}).peak < two ? 4 : 0);
  EXPECT_FALSE(ranks_that_fit(model(2), {}, 1, 64));
}

TEST(StepTime, IsBytesByBandwidth) {
  EXPECT_DOUBLE_EQ(seconds_at(3'000'000'000, 2'000'000'000), 1.5);
}

} // namespace
} // namespace tieshard

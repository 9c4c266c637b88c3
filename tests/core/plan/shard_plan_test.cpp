#include "tieshard/core/plan/shard_plan.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/families/known_families.h"

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::raised;

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";

HfConfig config() {
  return HfConfig::parse(testing::tiny_llama_config(), "config.json");
}

ParameterTable table() {
  return llama_family().table(config());
}

TieRegistry tied() {
  return TieRegistry::from_map({{kHead, kEmbed}}, table());
}

ShardPlanOptions options(std::map<std::string, int> dims = {}, ShardDimPolicy policy = ShardDimPolicy::kLast) {
  return {.policy = policy, .dims = std::move(dims), .units = llama_family().units(config())};
}

std::optional<Diagnostic> refusal(const TieRegistry& ties, std::map<std::string, int> dims, std::int64_t ranks = 2) {
  return raised<UsageError>([&] { ShardPlan::build(table(), ties, ranks, options(std::move(dims))); });
}

std::vector<std::string> names(const ShardPlan& plan) {
  std::vector<std::string> result;
  for (const ShardedParameter& parameter : plan.parameters()) {
    result.push_back(parameter.fqn);
  }
  return result;
}

// --- Write-up 001 (accelerate #3838): build_plan leaves aliases out and cuts the last dimension.

TEST(ShardPlan, HoldsEachTiedWeightOnceAndNeverItsAlias) {
  const ShardPlan plan = ShardPlan::build(table(), tied(), 2, options());
  const auto all = names(plan);
  EXPECT_EQ(std::count(all.begin(), all.end(), kEmbed), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), kHead), 0);
  EXPECT_EQ(all.size(), table().size() - 1);
}

TEST(ShardPlan, CutsEveryParameterOnItsLastDimension) {
  const ShardPlan plan = ShardPlan::build(table(), tied(), 2, options());
  for (const ShardedParameter& parameter : plan.parameters()) {
    EXPECT_EQ(parameter.dim, static_cast<int>(parameter.shape.size()) - 1) << parameter.fqn;
  }
}

TEST(ShardPlan, LeavesAnUntiedModelUntouched) {
  const ShardPlan plan = ShardPlan::build(table(), TieRegistry(), 2, options());
  ASSERT_EQ(plan.parameters().size(), table().size());
  for (std::size_t i = 0; i < table().size(); ++i) {
    EXPECT_EQ(plan.parameters()[i].fqn, table()[i].fqn); // registration order
  }
}

TEST(ShardPlan, FindsATiedParameterByEitherName) {
  const ShardPlan plan = ShardPlan::build(table(), tied(), 2, options());
  ASSERT_NE(plan.find(kHead), nullptr); // accelerate #3870: a KeyError here
  EXPECT_EQ(plan.find(kHead), plan.find(kEmbed));
  EXPECT_EQ(plan.find("lm_head.bias"), nullptr);
}

// --- Dimensions.

TEST(ShardPlan, PutsATiedWeightOnItsLastDimensionUnderEveryPolicy) {
  const ShardPlan plan = ShardPlan::build(table(), tied(), 2, options({}, ShardDimPolicy::kFirst));
  EXPECT_EQ(plan.find(kEmbed)->dim, 1);
  EXPECT_EQ(plan.find(kQuery)->dim, 0);
  EXPECT_EQ(plan.find("model.norm.weight")->dim, 0);
}

TEST(ShardPlan, RefusesTheVocabDimensionOfATiedWeightByEitherNameAndSign) {
  for (const auto& [asked, dim] : std::vector<std::pair<std::string, int>>{{kEmbed, 0}, {kHead, 0}, {kHead, -2}}) {
    const auto refused = refusal(tied(), {{asked, dim}});
    ASSERT_TRUE(refused.has_value()) << asked << " " << dim;
    EXPECT_EQ(refused->code, Code::kTiedWeightOnVocab);
    EXPECT_THAT(refused->where, HasSubstr(kEmbed));
    EXPECT_THAT(refused->why, HasSubstr("[6, 4]"));
  }
  EXPECT_FALSE(refusal(tied(), {{kHead, -1}}).has_value());
  EXPECT_FALSE(refusal(TieRegistry(), {{kHead, 0}}).has_value()); // untied: allowed
}

TEST(ShardPlan, TakesOverridesByNameAndSign) {
  const ShardPlan plan = ShardPlan::build(table(), tied(), 2, options({{kQuery, -2}}));
  EXPECT_EQ(plan.find(kQuery)->dim, 0);
}

TEST(ShardPlan, RefusesOverridesThatNameNothing) {
  const auto refused = refusal(tied(), {{"model.layers.7.self_attn.q_proj.weight", 0}});
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kUnknownParameter);
  EXPECT_EQ(refused->where, "model.layers.7.self_attn.q_proj.weight");
}

TEST(ShardPlan, RefusesDimensionsThatAParameterDoesNotHaveAndTwoForOne) {
  EXPECT_EQ(refusal(tied(), {{kQuery, 2}})->code, Code::kBadShardDim);
  EXPECT_EQ(refusal(tied(), {{kQuery, -3}})->code, Code::kBadShardDim);
  EXPECT_EQ(refusal(tied(), {{kHead, 1}, {kEmbed, 0}})->code, Code::kBadShardDim);
}

TEST(ShardPlan, ReplicatesA0DimParameter) {
  const ParameterTable scalar = {{"scale", {}, DType::kF32, 1}};
  const ShardPlan plan = ShardPlan::build(scalar, TieRegistry(), 3);
  EXPECT_EQ(plan.parameters()[0].dim, -1);
  EXPECT_EQ(plan.range(plan.parameters()[0], 2), (ChunkRange{0, 1}));
  EXPECT_EQ(plan.local_shape(plan.parameters()[0], 2), Shape{});
  EXPECT_EQ(plan.local_numel(2), 1);
  const auto refused =
      raised<UsageError>([&] { ShardPlan::build(scalar, TieRegistry(), 3, {.dims = {{"scale", 0}}}); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kBadShardDim);
}

// --- Units.

TEST(ShardPlan, PutsEachParameterIntoExactlyOneUnitTheRootFirst) {
  const ShardPlan plan = ShardPlan::build(table(), tied(), 2, options());
  ASSERT_EQ(plan.units().size(), 2U);
  EXPECT_EQ(plan.units()[0].name, "");
  EXPECT_EQ(plan.units()[1].name, "model.layers.0");
  std::set<std::size_t> seen;
  for (std::size_t unit = 0; unit < plan.units().size(); ++unit) {
    for (std::size_t index : plan.units()[unit].parameters) {
      EXPECT_TRUE(seen.insert(index).second);
      EXPECT_EQ(plan.parameters()[index].unit, unit);
    }
  }
  EXPECT_EQ(seen.size(), plan.parameters().size());
  EXPECT_EQ(plan.find(kQuery)->unit, 1U);
  EXPECT_EQ(plan.find("model.norm.weight")->unit, 0U);
}

TEST(ShardPlan, DoesNotTakeLayer10ForLayer1) {
  const ParameterTable layers = {{"model.layers.1.w", {4}, DType::kF32, 1}, {"model.layers.10.w", {4}, DType::kF32, 2}};
  const ShardPlan plan =
      ShardPlan::build(layers,
                       TieRegistry(),
                       2,
                       {.units = {{"model.layers.1", "model.layers.1."}, {"model.layers.10", "model.layers.10."}}});
  EXPECT_EQ(plan.find("model.layers.1.w")->unit, 1U);
  EXPECT_EQ(plan.find("model.layers.10.w")->unit, 2U);
}

TEST(ShardPlan, CoLocatesATiedWeightInTheRootWhenItsNamesFallIntoSeveralUnits) {
  const ParameterTable pair = {{"encoder.w", {4, 4}, DType::kF32, 1},
                               {"encoder.v", {4, 4}, DType::kF32, 2},
                               {"encoder.u", {4, 4}, DType::kF32, 2},
                               {"decoder.w", {4, 4}, DType::kF32, 1}};
  const ShardPlan plan =
      ShardPlan::build(pair, TieRegistry::of(pair), 2, {.units = {{"encoder", "encoder."}, {"decoder", "decoder."}}});
  EXPECT_EQ(plan.find("encoder.w")->unit, 0U); // its names are in both units
  EXPECT_EQ(plan.find("encoder.v")->unit, 1U); // both names are in one
  EXPECT_TRUE(plan.units()[2].parameters.empty());
  EXPECT_THAT(plan.units()[0].parameters, ElementsAre(0U));
}

// --- Sizes.

TEST(ShardPlan, GivesTheRanksPartsThatAddUpToTheWhole) {
  for (const auto policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
    for (std::int64_t ranks = 1; ranks <= 7; ++ranks) { // more ranks than the width of 4: some hold nothing
      const ShardPlan plan = ShardPlan::build(table(), tied(), ranks, options({}, policy));
      std::int64_t sum = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        sum += plan.local_numel(rank);
      }
      EXPECT_EQ(sum, plan.total_numel()) << ranks;
    }
  }
}

TEST(ShardPlan, CountsATiedWeightOnce) {
  const std::int64_t both = ShardPlan::build(table(), TieRegistry(), 2).total_numel();
  EXPECT_EQ(ShardPlan::build(table(), tied(), 2).total_numel(), both - 6 * 4);
}

TEST(ShardPlan, CutsUnevenAndEmptyPartsAsTorchChunkDoes) {
  const ShardPlan plan = ShardPlan::build(table(), tied(), 3, options());
  const ShardedParameter& embed = *plan.find(kEmbed); // width 4 on 3 ranks: 2, 2, 0
  EXPECT_EQ(plan.local_shape(embed, 0), (Shape{6, 2}));
  EXPECT_EQ(plan.local_shape(embed, 1), (Shape{6, 2}));
  EXPECT_EQ(plan.local_shape(embed, 2), (Shape{6, 0}));
}

TEST(ShardPlan, RefusesFewerThanOneRank) {
  EXPECT_EQ(refusal(tied(), {}, 0)->code, Code::kBadRankCount);
}

TEST(ShardPlan, RefusesARegistryOfAnotherTableInsteadOfDroppingParameters) {
  const ParameterTable head_only = {{kHead, {6, 4}, DType::kF32, 1}};
  const auto refused = raised<UsageError>([&] { ShardPlan::build(head_only, tied(), 2); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kUnknownParameter);
  EXPECT_THAT(refused->where, AllOf(HasSubstr(kHead), HasSubstr(kEmbed)));
}

TEST(ShardPlan, ExtendedItKeepsWhatItHasAndPutsNewParametersIntoTheirUnits) {
  const ShardPlan before = ShardPlan::build(table(), tied(), 2, options());
  const ParameterTable added = {
      {.fqn = "model.layers.0.self_attn.q_proj.lora_A.weight", .shape = {3, 4}, .identity = 91},
      {.fqn = "lm_head.lora_B.weight", .shape = {6, 3}, .identity = 92}};
  const ShardPlan plan = before.extended(added, ShardDimPolicy::kFirst);
  ASSERT_EQ(plan.parameters().size(), before.parameters().size() + 2);
  for (std::size_t index = 0; index < before.parameters().size(); ++index) {
    EXPECT_EQ(plan.parameters()[index].fqn, before.parameters()[index].fqn);
    EXPECT_EQ(plan.parameters()[index].dim, before.parameters()[index].dim);
  }
  const ShardedParameter& a = *plan.find(added[0].fqn);
  EXPECT_EQ(plan.units()[a.unit].name, "model.layers.0");
  EXPECT_EQ(plan.units()[a.unit].parameters.back(), before.parameters().size());
  EXPECT_EQ(a.dim, 0);
  EXPECT_THAT(plan.local_shape(a, 1), ElementsAre(1, 4));
  EXPECT_EQ(plan.find(added[1].fqn)->unit, 0U);
  EXPECT_EQ(plan.ties().canonical(kHead), kEmbed);
  const auto refused = raised<UsageError>([&] { plan.extended(added); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kUnknownParameter);
}

TEST(ShardPlanUnits, TheFirstUnitWhosePrefixMatchesTakesAParameter) {
  const ParameterTable table = {{.fqn = "a.b.c.weight", .shape = {4}, .identity = 1},
                                {.fqn = "a.b.weight", .shape = {4}, .identity = 2},
                                {.fqn = "a.weight", .shape = {4}, .identity = 3},
                                {.fqn = "ab.weight", .shape = {4}, .identity = 4},
                                {.fqn = "w", .shape = {4}, .identity = 5}};
  const auto units_of = [&table](std::vector<UnitSpec> units) {
    std::vector<std::size_t> taken;
    const ShardPlan plan = ShardPlan::build(table, TieRegistry(), 2, {.units = std::move(units)});
    for (const ShardedParameter& parameter : plan.parameters()) {
      taken.push_back(parameter.unit);
    }
    return taken;
  };
  EXPECT_THAT(units_of({{"a.b", "a.b."}, {"a", "a."}}), ElementsAre(1, 1, 2, 0, 0));
  EXPECT_THAT(units_of({{"a", "a."}, {"a.b", "a.b."}}), ElementsAre(1, 1, 1, 0, 0));
  EXPECT_THAT(units_of({{"a.b.c", "a.b.c."}, {"a.b.c", "a.b.c."}}), ElementsAre(1, 0, 0, 0, 0));
  EXPECT_THAT(units_of({{"long", "a.b.c.weight.and.more."}, {"all", ""}}), ElementsAre(2, 2, 2, 2, 2));
}

} // namespace
} // namespace tieshard

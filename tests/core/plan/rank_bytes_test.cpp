#include "tieshard/core/plan/rank_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/plan/read_plan.h"

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;

/// A checkpoint whose parameters are its tensors, each in memory as F64, and a plan of it.
class RankBytesOf : public ::testing::TestWithParam<std::int64_t> {
 protected:
  RankBytesOf() {
    fixture_.write({counting("even", {2, 8}),
                    counting("uneven", {3, 7}),
                    counting("few", {5, 2}),
                    counting("none", {4, 0}),
                    testing::as_bf16(counting("half", {6})),
                    counting("scalar", {})});
    checkpoint_.emplace(fixture_.open());
    for (const StoredTensor& tensor : checkpoint_->tensors()) {
      table_.push_back({.fqn = tensor.name, .shape = tensor.shape, .dtype = DType::kF64, .identity = table_.size()});
    }
  }

  ShardPlan plan(std::int64_t ranks) const {
    return ShardPlan::build(table_, TieRegistry(), ranks);
  }

  CheckpointFixture fixture_;
  std::optional<Checkpoint> checkpoint_;
  ParameterTable table_;
};

TEST_P(RankBytesOf, AreThoseOfEachReadPlan) {
  const ShardPlan plan = this->plan(GetParam());
  const WeightSources sources = find_weight_sources(*checkpoint_, plan);
  std::int64_t next = 0;
  for (const RankBytes& group : rank_bytes(plan, sources)) {
    EXPECT_EQ(group.first, next);
    for (std::int64_t rank = group.first; rank <= group.last; ++rank) {
      EXPECT_EQ(group.elements, plan.local_numel(rank)) << rank;
      EXPECT_EQ(group.memory_bytes, 8 * static_cast<std::uint64_t>(plan.local_numel(rank))) << rank;
      EXPECT_EQ(group.read_bytes, build_read_plan(sources, plan, rank).bytes()) << rank;
    }
    next = group.last + 1;
  }
  EXPECT_EQ(next, plan.ranks());
}

TEST(RankBytesOfExperts, AreApartOfAllAndNoneOnRanksWithoutOne) {
  CheckpointFixture fixture;
  fixture.write({counting("mlp.experts.up", {3, 2}), counting("mlp.router", {4, 2})});
  const Checkpoint checkpoint = fixture.open();
  ParameterTable table;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    table.push_back({.fqn = tensor.name, .shape = tensor.shape, .dtype = DType::kF32, .identity = table.size()});
  }
  const ShardPlan plan = ShardPlan::build(table, TieRegistry(), 4, {.policy = ShardDimPolicy::kFirst});
  std::vector<std::uint64_t> experts;
  for (const RankBytes& group : rank_bytes(plan, find_weight_sources(checkpoint, plan))) {
    for (std::int64_t rank = group.first; rank <= group.last; ++rank) {
      experts.push_back(group.expert_bytes);
      EXPECT_EQ(group.memory_bytes, group.expert_bytes + 8);
    }
  }
  EXPECT_THAT(experts, ElementsAre(8, 8, 8, 0));
}

TEST_P(RankBytesOf, MakeUpTheirHostsWhereNothingIsReplicated) {
  const ShardPlan plan = this->plan(GetParam());
  const WeightSources sources = find_weight_sources(*checkpoint_, plan);
  for (const std::int64_t ranks_per_host : {1, 2, 3, 100}) {
    std::int64_t rank = 0;
    std::int64_t next_host = 0;
    for (const HostBytes& hosts : host_bytes(plan, sources, ranks_per_host)) {
      EXPECT_EQ(hosts.first, next_host);
      for (std::int64_t host = hosts.first; host <= hosts.last; ++host) {
        std::uint64_t asked = 4; // the scalar, once
        for (std::int64_t i = 0; i < hosts.ranks; ++i, ++rank) {
          asked += build_read_plan(sources, plan, rank).bytes() - 4;
        }
        EXPECT_EQ(hosts.read_bytes, asked) << "host " << host;
      }
      next_host = hosts.last + 1;
    }
    EXPECT_EQ(rank, plan.ranks());
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankBytesOf, ::testing::Values(1, 2, 3, 4, 5, 7, 8, 9, 64));

using RankBytesOfSources = RankBytesOf;

TEST_F(RankBytesOfSources, CountScalesWholeForEachHolderAndOnceAHost) {
  const ShardPlan plan = this->plan(4);
  const StoredTensor scales{.name = "scales", .dtype = DType::kF32, .shape = {25}, .bytes = 100};
  WeightSources with_scales = find_weight_sources(*checkpoint_, plan);
  const std::vector<RankBytes> before = rank_bytes(plan, with_scales);
  const std::vector<HostBytes> hosts_before = host_bytes(plan, with_scales, 2);
  // "few" [5, 2] lies on ranks 0 and 1, both on host 0.
  with_scales.of_parameter.at(1).scales = &scales;
  ASSERT_EQ(plan.parameters()[1].fqn, "few");
  const std::vector<RankBytes> after = rank_bytes(plan, with_scales);
  EXPECT_EQ(after.front().read_bytes, before.front().read_bytes + 100);
  EXPECT_EQ(after.back().read_bytes, before.back().read_bytes);
  const std::vector<HostBytes> hosts_after = host_bytes(plan, with_scales, 2);
  EXPECT_EQ(hosts_after.front().read_bytes, hosts_before.front().read_bytes + 100);
  EXPECT_EQ(hosts_after.back().read_bytes, hosts_before.back().read_bytes);
}

TEST_F(RankBytesOfSources, CountAnInitialisedParameterAsNotRead) {
  const ShardPlan plan = this->plan(1);
  WeightSources sources = find_weight_sources(*checkpoint_, plan);
  const std::uint64_t read = rank_bytes(plan, sources).front().read_bytes;
  sources.of_parameter.at(0).values = nullptr; // "even", 16 elements
  const RankBytes rank = rank_bytes(plan, sources).front();
  EXPECT_EQ(rank.read_bytes, read - 64);
  EXPECT_EQ(rank.init_bytes, 128U);
  EXPECT_EQ(host_bytes(plan, sources, 1).front().read_bytes, read - 64);
}

TEST_F(RankBytesOfSources, CountFourBitsForEachElementOfMxfp4) {
  const ShardPlan plan = this->plan(1);
  WeightSources sources = find_weight_sources(*checkpoint_, plan);
  const std::uint64_t read = rank_bytes(plan, sources).front().read_bytes;
  sources.of_parameter.at(0).encoding = Encoding::kMxfp4;
  EXPECT_EQ(rank_bytes(plan, sources).front().read_bytes, read - 64 + 8);
}

} // namespace
} // namespace tieshard

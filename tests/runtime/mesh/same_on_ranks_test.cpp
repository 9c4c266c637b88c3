// Ranks that were told different things, and what their refusal says.

#include "tieshard/runtime/mesh/same_on_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

class SameOnRanks : public ::testing::TestWithParam<BackendChoice> {};

TEST_P(SameOnRanks, SaysNothingOfEqualLists) {
  on_ranks(
      3,
      [](const DeviceMesh& mesh) {
        EXPECT_EQ(difference_over_ranks(mesh, "flags", {}), "");
        EXPECT_EQ(difference_over_ranks(mesh, "flags", {{"--lr", "0.1"}, {"--seed", "7"}}), "");
      },
      GetParam());
}

TEST_P(SameOnRanks, NamesWhatDiffersTheRanksAndAllValues) {
  on_ranks(
      3,
      [](const DeviceMesh& mesh) {
        const std::string lr = mesh.rank() == 0 ? "0.0001" : "0.5";
        const std::vector<NamedText> mine = {{"--seed", "7"}, {"--lr", lr}};
        EXPECT_EQ(difference_over_ranks(mesh, "flags", mine), "--lr is 0.0001 on rank 0, 0.5 on ranks 1 and 2");
        expect_refusal(
            [&] {
              require_equal_on_ranks(
                  mesh, "flags", mine, {.code = Code::kBadEnvironment, .what = "flags differ", .fix = "do not"});
            },
            Code::kBadEnvironment,
            {"flags differ", mesh.where(), "--lr is 0.0001 on rank 0, 0.5 on ranks 1 and 2", "do not"});
      },
      GetParam());
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         SameOnRanks,
                         ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo),
                         [](const auto& info) { return info.param == BackendChoice::kShm ? "shm" : "gloo"; });

TEST(SameOnRanksInDetail, ANameThatARankLacksIsNotGivenThere) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    std::vector<NamedText> mine = {{"a", "1"}};
    if (mesh.rank() == 1) {
      mine.push_back({"b", "\xff any bytes"});
    }
    EXPECT_THAT(difference_over_ranks(mesh, "flags", mine), ::testing::StartsWith("b is not given on rank 0, "));
  });
}

TEST(SameOnRanksInDetail, OfManyDifferencesTheFirstAreShownAndTheOthersCounted) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    std::vector<NamedText> mine;
    for (int i = 0; i < 20; ++i) {
      mine.push_back({concat("parameter ", i), concat(i == 3 ? 0 : mesh.rank())});
    }
    const std::string text = difference_over_ranks(mesh, "flags", mine);
    EXPECT_THAT(text, ::testing::StartsWith("parameter 0 is 0 on rank 0, 1 on rank 1; parameter 1 is "));
    EXPECT_THAT(text, ::testing::EndsWith("; and 15 more"));
  });
}

TEST(SameOnRanksInDetail, OneRankHasNobodyToDifferFrom) {
  EXPECT_EQ(difference_over_ranks(DeviceMesh(), "flags", {{"--lr", "1"}}), "");
}

} // namespace
} // namespace tieshard::testing

#include "tieshard/core/data/sample_order.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

std::vector<std::int64_t> places(SampleOrder order, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> samples;
  for (std::int64_t place = first; place < first + count; ++place) {
    samples.push_back(order.at(place));
  }
  return samples;
}

TEST(SampleOrder, UnshuffledCountsUpAndBeginsAgain) {
  EXPECT_THAT(places(SampleOrder(3, false, 0), 0, 7), ::testing::ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

TEST(SampleOrder, ShuffledIsAnotherPermutationInEachEpochAndForEachSeed) {
  std::vector<std::int64_t> all(24);
  std::iota(all.begin(), all.end(), 0);
  const auto first = places(SampleOrder(24, true, 7), 0, 24);
  const auto second = places(SampleOrder(24, true, 7), 24, 24);
  EXPECT_THAT(first, ::testing::UnorderedElementsAreArray(all));
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(all));
  EXPECT_NE(first, all);
  EXPECT_NE(first, second);
  EXPECT_NE(first, places(SampleOrder(24, true, 8), 0, 24));
}

TEST(SampleOrder, DoesNotHangOnWhatWasAskedBefore) {
  SampleOrder order(24, true, 7);
  const std::int64_t place = order.at(30);
  order.at(0);
  EXPECT_EQ(order.at(30), place);
}

} // namespace
} // namespace tieshard::testing

#include "tieshard/core/doctor/value_budget.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard {
namespace {

using ::testing::ElementsAre;

TEST(ValueBudget, GivesEverythingWhereThereIsRoom) {
  EXPECT_THAT(bytes_to_read({{.bytes = 10}, {.bytes = 20, .first = true}}, 30), ElementsAre(10, 20));
  EXPECT_THAT(bytes_to_read({}, 30), ElementsAre());
}

TEST(ValueBudget, FirstOnesAreWholeBeforeOthersGetAnything) {
  EXPECT_THAT(bytes_to_read({{.bytes = 10}, {.bytes = 20, .first = true}}, 20), ElementsAre(0, 20));
  EXPECT_THAT(bytes_to_read({{.bytes = 10}, {.bytes = 20, .first = true}}, 15), ElementsAre(0, 15));
}

TEST(ValueBudget, TheRestIsSharedAndWhatASmallOneLeavesGoesToTheLarger) {
  EXPECT_THAT(bytes_to_read({{.bytes = 1000}, {.bytes = 10}, {.bytes = 400}}, 610), ElementsAre(300, 10, 300));
  EXPECT_THAT(bytes_to_read({{.bytes = 1000}, {.bytes = 10}, {.bytes = 200}}, 610), ElementsAre(400, 10, 200));
}

TEST(ValueBudget, PartsAreWholeElements) {
  EXPECT_THAT(bytes_to_read({{.bytes = 1000, .element = 8}, {.bytes = 1000, .element = 8}}, 30), ElementsAre(8, 16));
}

TEST(ValueBudget, NeverExceedsTheBudget) {
  std::vector<BudgetedTensor> tensors;
  for (std::uint64_t i = 1; i < 200; ++i) {
    tensors.push_back({.bytes = i * i * 4, .element = 4, .first = i % 7 == 0});
  }
  for (const std::uint64_t budget : {0U, 3U, 1000U, 100'000U, 10'000'000U, 100'000'000U}) {
    const std::vector<std::uint64_t> got = bytes_to_read(tensors, budget);
    EXPECT_LE(std::accumulate(got.begin(), got.end(), std::uint64_t{0}), budget);
  }
}

} // namespace
} // namespace tieshard

#include "tieshard/cli/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard::cli {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> patterns(const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const NameGroup& group : fold_names(names, [](std::size_t) { return ""; })) {
    found.push_back(group.pattern);
  }
  return found;
}

TEST(FoldNames, FoldsNamesThatDifferInTheirNumbersOnly) {
  EXPECT_THAT(patterns({"embed", "layers.0.q", "layers.0.k", "layers.1.q", "layers.1.k", "layers.2.q"}),
              ElementsAre("embed", "layers.0-2.q", "layers.0-1.k"));
}

TEST(FoldNames, SaysWhichNumbersOccurWhereSomeAreLeftOut) {
  EXPECT_THAT(patterns({"l.0", "l.2"}), ElementsAre("l.0,2"));
  EXPECT_THAT(patterns({"l.1", "l.3", "l.5"}), ElementsAre("l.1,3,5"));
  EXPECT_THAT(patterns({"l.0", "l.2", "l.4", "l.6"}), ElementsAre("l.0,2,..,6"));
}

TEST(FoldNames, OrdersNumbersByValue) {
  EXPECT_THAT(patterns({"l.10", "l.9", "l.8"}), ElementsAre("l.8-10"));
}

TEST(FoldNames, FoldsEveryNumberOfAName) {
  EXPECT_THAT(patterns({"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w"}), ElementsAre("l.0-1.e.0-1.w"));
}

TEST(FoldNames, KeepsKindsApart) {
  const std::vector<std::string> names = {"l.0", "l.1", "l.2"};
  const auto groups = fold_names(names, [](std::size_t i) { return i == 1 ? "odd" : "even"; });
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].pattern, "l.0,2");
  EXPECT_THAT(groups[0].members, ElementsAre(0U, 2U));
  EXPECT_EQ(groups[1].pattern, "l.1");
}

TEST(FoldNames, LeavesNumbersAloneThatAreTooLongToBeOne) {
  EXPECT_THAT(patterns({"l.99999999999999999999", "a..b", ""}), ElementsAre("l.99999999999999999999", "a..b", ""));
}

} // namespace
} // namespace tieshard::cli

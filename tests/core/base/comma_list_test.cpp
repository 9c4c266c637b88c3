#include "tieshard/core/base/comma_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard {
namespace {

using ::testing::ElementsAre;

TEST(CommaList, KeepsEveryPartAlsoAnEmptyOne) {
  EXPECT_THAT(split_at_commas("a,bc"), ElementsAre("a", "bc"));
  EXPECT_THAT(split_at_commas("a,,b,"), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split_at_commas(""), ElementsAre(""));
}

} // namespace
} // namespace tieshard

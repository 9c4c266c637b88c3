#include "tieshard/cli/closest_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard::cli {
namespace {

using ::testing::ElementsAre;

TEST(ClosestNames, PutsNamesThatContainTheAskedOneFirstThenTheFewestEdits) {
  const std::vector<std::string> names = {"zzzzzzzzzz", "model.norms", "norm.weight.model.norm"};
  EXPECT_THAT(closest_names("model.norm", names, 3),
              ElementsAre("model.norms", "norm.weight.model.norm", "zzzzzzzzzz"));
  EXPECT_THAT(closest_names("modle.norms", names, 1), ElementsAre("model.norms"));
}

TEST(ClosestNames, GivesNoMoreThanThereAre) {
  EXPECT_THAT(closest_names("a", std::vector<std::string>{"b"}, 3), ElementsAre("b"));
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/core/optim/frozen_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAre;

const std::vector<GroupCandidate> kModel = {{.names = {"model.embed_tokens.weight", "lm_head.weight"}, .dims = 2},
                                            {.names = {"model.layers.0.q_proj.weight"}, .dims = 2},
                                            {.names = {"model.layers.0.norm.weight"}, .dims = 1},
                                            {.names = {"model.layers.1.q_proj.weight"}, .dims = 2}};

TEST(FrozenParameters, AreThoseWithAPatternInAName) {
  EXPECT_THAT(frozen_parameters({}, kModel), ElementsAre(false, false, false, false));
  EXPECT_THAT(frozen_parameters({"layers.0."}, kModel), ElementsAre(false, true, true, false));
  EXPECT_THAT(frozen_parameters({"layers.*.weight", "norm"}, kModel), ElementsAre(false, true, true, true));
}

TEST(FrozenParameters, AreFoundByAnAliasToo) {
  EXPECT_THAT(frozen_parameters({"lm_head"}, kModel), ElementsAre(true, false, false, false));
}

TEST(FrozenParameters, RefuseAPatternThatTakesNothing) {
  for (const std::string pattern : {"router", ""}) {
    expect_refusal([&] { frozen_parameters({"norm", pattern}, kModel); },
                   Code::kUnknownParameter,
                   {"--freeze \"" + pattern + "\"", "among 4"});
  }
}

TEST(FrozenParameters, RefuseToLeaveNothingToTrain) {
  expect_refusal([] { frozen_parameters({"*"}, kModel); }, Code::kBadFlag, {"--freeze", "all 4"});
  expect_refusal([] { frozen_parameters({"layers", "embed"}, kModel); }, Code::kBadFlag, {"--freeze", "all 4"});
}

} // namespace
} // namespace tieshard::testing

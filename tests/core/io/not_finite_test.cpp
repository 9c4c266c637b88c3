#include "tieshard/core/io/not_finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(NotFiniteFinding, IsOneWarningThatNamesParametersAndPlaces) {
  const Diagnostic finding = not_finite_finding({{"a.weight", {3, 5}, true}, {"b.bias", {0}, false}});
  EXPECT_EQ(finding.level, Level::kWarning);
  EXPECT_EQ(finding.code, Code::kNotFinite);
  EXPECT_EQ(finding.where, "a.weight, b.bias");
  EXPECT_EQ(finding.why, "expected finite numbers, got a.weight[3, 5] = NaN, b.bias[0] = infinity");
}

TEST(NotFiniteFinding, CountsAllButNamesTheFirstPlacesOnly) {
  std::vector<NotFinite> many;
  for (int i = 0; i < 100; ++i) {
    many.push_back({concat("layer", i), {i}, true});
  }
  const Diagnostic finding = not_finite_finding(many);
  EXPECT_THAT(finding.why, HasSubstr("layer7[7] = NaN and 92 more"));
  EXPECT_THAT(finding.why, Not(HasSubstr("layer8[")));
}

} // namespace
} // namespace tieshard::testing

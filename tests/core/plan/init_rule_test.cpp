#include "tieshard/core/plan/init_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::HasSubstr;
using testing::raised;

void expect_rule(std::string_view text, InitRule::Kind kind, double a, double b) {
  const InitRule rule = InitRule::parse(text);
  EXPECT_EQ(rule.kind, kind) << text;
  EXPECT_EQ(rule.a, a) << text;
  EXPECT_EQ(rule.b, b) << text;
}

TEST(InitRule, ReadsEveryDistribution) {
  expect_rule("zeros", InitRule::Kind::kConstant, 0.0, 0.0);
  expect_rule("ones", InitRule::Kind::kConstant, 1.0, 0.0);
  expect_rule("constant(-2.5)", InitRule::Kind::kConstant, -2.5, 0.0);
  expect_rule("normal(0.02)", InitRule::Kind::kNormal, 0.0, 0.02);
  expect_rule("normal(0)", InitRule::Kind::kNormal, 0.0, 0.0);
  expect_rule("normal(1, 2e-2)", InitRule::Kind::kNormal, 1.0, 0.02);
  expect_rule("uniform(-0.1,0.1)", InitRule::Kind::kUniform, -0.1, 0.1);
  expect_rule("uniform( -1 , -1 )", InitRule::Kind::kUniform, -1.0, -1.0);
}

TEST(InitRule, RefusesWhatIsNoRule) {
  for (const char* text : {"",
                           "normal",
                           "normal()",
                           "normal(0.02",
                           "normal(0.02))",
                           "normal 0.02",
                           "normal(nan)",
                           "normal(inf)",
                           "normal(1e999)",
                           "normal(-0.02)",
                           "normal(0,-1)",
                           "normal(0, 1, 2)",
                           "normal(0,)",
                           "normal(0.02) ",
                           "uniform(1)",
                           "uniform(1, 0)",
                           "uniform(-1.7e308, 1.7e308)",
                           "constant()",
                           "constant(1, 2)",
                           "Zeros",
                           "zeros()",
                           "xavier(1)"}) {
    const auto refused = raised<InputError>([text] { InitRule::parse(text); });
    ASSERT_TRUE(refused.has_value()) << text;
    EXPECT_EQ(refused->code, Code::kBadFlag);
    EXPECT_THAT(refused->why, HasSubstr(text));
    EXPECT_THAT(refused->fix, HasSubstr("normal(std)"));
  }
}

TEST(InitRule, IsWrittenAsItIsRead) {
  for (const char* text : {"constant(0.5)", "normal(0, 0.02)", "uniform(-1, 1)"}) {
    EXPECT_EQ(InitRule::parse(text).to_string(), text);
  }
}

} // namespace
} // namespace tieshard

#include "tieshard/cli/app.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using testing::Answer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run;
using ::testing::StartsWith;

TEST(App, GivesHelpWithExamplesForEveryVerbOfItsOwn) {
  for (const char* verb : {"inspect", "ties", "plan", "demo"}) {
    const Answer flag = run({verb, "--help"});
    EXPECT_EQ(flag.status, 0);
    EXPECT_THAT(flag.out, HasSubstr("Examples:\n"));
    EXPECT_THAT(flag.err, IsEmpty());
    EXPECT_EQ(run({"help", verb}).out, flag.out);
  }
}

TEST(App, ListsEveryVerb) {
  const Answer answer = run({"--help"});
  EXPECT_EQ(answer.status, 0);
  for (const char* verb : {"\n  inspect ", "\n  ties ", "\n  plan ", "\n  train ", "\n  forward ", "\n  demo "}) {
    EXPECT_THAT(answer.out, HasSubstr(verb));
  }
  EXPECT_EQ(run({"help"}).out, answer.out);
}

TEST(App, SaysItsVersion) {
  const Answer answer = run({"--version"});
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.out, std::string("tieshard ") + version() + "\n");
}

TEST(App, RefusesALineWithoutAVerbAndOneWithAnUnknownVerb) {
  const Answer none = run({});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.out, IsEmpty());
  EXPECT_THAT(none.err, HasSubstr("Subcommands:"));
  for (const Answer& unknown : {run({"dance"}), run({"help", "dance"})}) {
    EXPECT_EQ(unknown.status, 2);
    EXPECT_THAT(unknown.err, StartsWith("error  "));
    EXPECT_THAT(unknown.err, HasSubstr("dance"));
    EXPECT_THAT(unknown.err, HasSubstr("[bad-flag]"));
  }
}

TEST(App, NamesTheProgramThatIsMissingForTrainForwardAndDemo) {
  // The test program lies in a folder without tieshard-runtime.
  for (const auto& words : {std::vector<std::string>{"train", "--help"}, {"forward"}, {"demo"}, {"help", "train"}}) {
    const Answer answer = run(words);
    EXPECT_EQ(answer.status, 2);
    EXPECT_THAT(answer.err, HasSubstr("tieshard-runtime"));
    EXPECT_THAT(answer.err, HasSubstr("[file-not-found]"));
  }
}

} // namespace
} // namespace tieshard::cli

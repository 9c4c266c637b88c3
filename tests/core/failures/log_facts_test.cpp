#include "tieshard/core/failures/log_facts.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/failures/log_lines.h"

namespace tieshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

LogLine cleaned(const std::string& raw) {
  LogLine line;
  clean_log_line(raw, line);
  return line;
}

LogFacts facts_of(const std::string& log) {
  std::istringstream text(log);
  return read_log(text);
}

TEST(LogLines, LauncherPrefixesNameTheRank) {
  for (const auto& [raw, rank] :
       std::vector<std::pair<std::string, int>>{{"[rank3]: KeyError: 'x'", 3},
                                                {"[default12]:KeyError: 'x'", 12},
                                                {"7: KeyError: 'x'", 7},
                                                {"[1,5]<stderr>:KeyError: 'x'", 5},
                                                {"2026-11-29 10:11:12,345 [rank1]: KeyError: 'x'", 1},
                                                {"KeyError: 'x'", -1}}) {
    EXPECT_EQ(cleaned(raw).rank, rank) << raw;
    EXPECT_EQ(cleaned(raw).text, "KeyError: 'x'") << raw;
  }
  EXPECT_EQ(cleaned("[rank]: x").rank, -1);
  EXPECT_EQ(cleaned("[rank1]:   File \"a\"").text, "  File \"a\"");
}

TEST(LogLines, EscapesAndReturnsAreTakenOut) {
  EXPECT_EQ(cleaned("\x1B[1;31mKeyError\x1B[0m: 'x'").text, "KeyError: 'x'");
  EXPECT_EQ(cleaned("Loading:  10%\rLoading: 100%").text, "Loading: 100%");
  EXPECT_EQ(cleaned("\x1B[").text, "");
  EXPECT_EQ(cleaned("[2026-11-29T10:11:12.345Z] hello").text, "hello");
}

TEST(LogFacts, TracebacksOfRanksThatAreMixedStayApart) {
  const LogFacts facts = facts_of(
      "[rank0]: Traceback (most recent call last):\r\n"
      "[rank1]: Traceback (most recent call last):\r\n"
      "[rank0]:   File \"/v/site-packages/accelerate/a.py\", line 1, in prepare\r\n"
      "[rank1]:   File \"/v/site-packages/torch/b.py\", line 2, in forward\r\n"
      "[rank1]: RuntimeError: one\r\n"
      "[rank0]: KeyError: 'two'\r\n");
  ASSERT_THAT(facts.exceptions, SizeIs(2));
  EXPECT_EQ(facts.exceptions[0].type, "RuntimeError");
  EXPECT_EQ(facts.exceptions[0].place(), "b.py, forward");
  EXPECT_EQ(facts.exceptions[1].message, "'two'");
  EXPECT_TRUE(facts.exceptions[1].came_through("prepare"));
  EXPECT_FALSE(facts.exceptions[1].came_through("forward"));
  EXPECT_THAT(facts.frameworks, ElementsAre("accelerate", "torch"));
  EXPECT_THAT(facts.ranks, ElementsAre(0, 1));
}

TEST(LogFacts, AMessageOfSeveralLinesIsOne) {
  const LogFacts facts = facts_of(
      "RuntimeError: Error(s) in loading\n\tsize mismatch for a.weight: copying\n\nnext\nValueError: b\nDuring "
      "handling of\n");
  ASSERT_THAT(facts.exceptions, SizeIs(2));
  EXPECT_EQ(facts.exceptions[0].message, "Error(s) in loading size mismatch for a.weight: copying");
  EXPECT_EQ(facts.exceptions[1].message, "b");
}

TEST(LogFacts, ExceptionsThatAreChainedAreEach) {
  const LogFacts facts = facts_of(
      "KeyError: 3\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent "
      "call last):\n"
      "  File \"a.py\", line 1, in f\nmodule.sub.CustomError\n");
  ASSERT_THAT(facts.exceptions, SizeIs(2));
  EXPECT_EQ(facts.exceptions[1].type, "CustomError");
  EXPECT_EQ(facts.exceptions[1].line, 7U);
}

TEST(LogFacts, ALoadReportThatMadeWeightsUpIsAWarning) {
  const LogFacts facts =
      facts_of("model.norm.weight   | MISSING    | \nNotes:\n- MISSING: those params were newly initialized because\n");
  ASSERT_THAT(facts.exceptions, SizeIs(1));
  EXPECT_EQ(facts.exceptions[0].type, "warning");
  EXPECT_THAT(facts.exceptions[0].message, HasSubstr("model.norm.weight: "));
}

TEST(LogFacts, StayBoundedHoweverLongTheLogIs) {
  std::string log = std::string(5'000'000, 'x') + "\n";
  for (int i = 0; i < 3000; ++i) {
    log += "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'a.weight'\nKilled\n";
  }
  const LogFacts facts = facts_of(log);
  EXPECT_EQ(facts.lines, 12001U);
  EXPECT_LE(facts.exceptions.size(), 256U);
  EXPECT_LE(facts.telling.size(), 64U);
  EXPECT_THAT(facts.telling, Contains("Killed"));
}

TEST(LogFacts, OfNothingAreNone) {
  EXPECT_EQ(facts_of("").lines, 0U);
  EXPECT_EQ(facts_of(std::string("\0\xFF\xFE: \n", 6)).exceptions.size(), 0U);
}

} // namespace
} // namespace tieshard

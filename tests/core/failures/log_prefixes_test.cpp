#include "tieshard/core/failures/log_prefixes.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/failures/log_facts.h"

namespace tieshard {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr const char* kTracebackLines[] = {"Traceback (most recent call last):",
                                           "  File \"/x/train.py\", line 17, in f",
                                           "    plan[name] = parameters[name]",
                                           "                 ~~~~~~~~~~^^^^^^",
                                           "KeyError: 'lm_head.weight'"};

LogFacts facts_of(const std::string& log) {
  std::istringstream text(log);
  return read_log(text);
}

std::string with_prefix(const std::string& prefix) {
  std::string log = "a line before\n";
  for (const char* line : kTracebackLines) {
    log += prefix + line + "\n";
  }
  return log;
}

TEST(LogPrefixes, WhatStandsInFrontOfEveryLineIsTakenOff) {
  for (const auto& [prefix, rank] :
       std::vector<std::pair<std::string, int>>{{"", -1},
                                                {"[rank2]:[rank2]: ", 2},
                                                {"[default0]:[rank2]: ", 2},
                                                {"[trainer0]:[rank2]: ", 2},
                                                {"worker-0: ", -1},
                                                {"node001: [rank3]: ", 3},
                                                {"0: [rank3]: ", 3},
                                                {"0:", 0},
                                                {" 0: ", 0},
                                                {"00: ", 0},
                                                {"[1,0]<stderr>:[rank4]: ", 4},
                                                {"[1,4]<stderr>: ", 4},
                                                {"(RayTrainWorker pid=1, ip=1.2.3.4) ", -1},
                                                {"2026-09-01 12:00:00.123 | ERROR    | __main__:f:1 - ", -1},
                                                {"ERROR:root:", -1},
                                                {"[rank0]:[titan] 2026-09-01 12:00:00,123 - root - ERROR - ", 0},
                                                {"Sep 01 12:00:00 ", -1},
                                                {"12:00:00 [rank0]: ", 0},
                                                {"[rank0]: [2026-09-01 12:00:00] ", 0},
                                                {"I0901 12:00:00.1 1 x.py:1] ", -1},
                                                {"trainer-0-worker-1  | ", -1},
                                                {"[pod/train-0/pytorch] ", -1},
                                                {"2026-09-01T12:00:00.123456789Z stderr F ", -1},
                                                {"#12 34.5 ", -1},
                                                {"    ", -1},
                                                {"> ", -1},
                                                {"> > ", -1}}) {
    const LogFacts facts = facts_of(with_prefix(prefix));
    ASSERT_THAT(facts.exceptions, SizeIs(1)) << prefix;
    EXPECT_EQ(facts.exceptions[0].message, "'lm_head.weight'") << prefix;
    EXPECT_EQ(facts.exceptions[0].place(), "train.py, f") << prefix;
    EXPECT_EQ(facts.exceptions[0].frames.back().source, "plan[name] = parameters[name]") << prefix;
    if (rank >= 0) {
      EXPECT_EQ(facts.exceptions[0].rank, rank) << prefix;
    }
    EXPECT_EQ(facts.tracebacks_cut, 0U) << prefix;
  }
}

TEST(LogPrefixes, TimesMayGoOn) {
  std::string log;
  int second = 10;
  for (const char* line : kTracebackLines) {
    log += concat("2026-09-01 12:00:", second++, ",1 - ERROR - ", line, "\n");
  }
  const LogFacts facts = facts_of(log);
  ASSERT_THAT(facts.exceptions, SizeIs(1));
  EXPECT_EQ(facts.exceptions[0].place(), "train.py, f");
}

TEST(LogPrefixes, WritersThatAreMixedStayApart) {
  std::string log;
  for (const char* line : kTracebackLines) {
    for (const char* writer : {"node1: [rank0]: ", "node2: [rank1]: "}) {
      log += concat(writer, line, "\n");
    }
  }
  const LogFacts facts = facts_of(log);
  ASSERT_THAT(facts.exceptions, SizeIs(2));
  EXPECT_THAT(facts.exceptions[0].frames, SizeIs(1));
  EXPECT_THAT(facts.exceptions[1].frames, SizeIs(1));
  EXPECT_THAT(facts.ranks, ElementsAre(0, 1));
}

TEST(LogPrefixes, AnIndentationEndsWithTheTextThatHasNone) {
  const LogFacts facts = facts_of(with_prefix("    ") + "next\nRuntimeError: save\n    a further line\n");
  ASSERT_THAT(facts.exceptions, SizeIs(2));
  EXPECT_EQ(facts.exceptions[1].message, "save a further line");
}

TEST(LogPrefixes, OfAGroupEachExceptionIsTaken) {
  const LogFacts facts = facts_of(
      "  + Exception Group Traceback (most recent call last):\n"
      "  |   File \"t.py\", line 1, in <module>\n"
      "  |     f()\n"
      "  | ExceptionGroup: all (1 sub-exception)\n"
      "  +-+---------------- 1 ----------------\n"
      "    | Traceback (most recent call last):\n"
      "    |   File \"t.py\", line 3, in g\n"
      "    |     d[k]\n"
      "    | KeyError: 'lm_head.weight'\n"
      "    +------------------------------------\n");
  ASSERT_THAT(facts.exceptions, SizeIs(2));
  EXPECT_EQ(facts.exceptions[0].type, "ExceptionGroup");
  EXPECT_EQ(facts.exceptions[1].message, "'lm_head.weight'");
  EXPECT_EQ(facts.exceptions[1].place(), "t.py, g");
}

TEST(LogPrefixes, AreBoundedHoweverManyWritersThereAre) {
  std::string log;
  for (int i = 0; i < 3000; ++i) {
    log += concat("writer", i, "! Traceback (most recent call last):\n");
  }
  EXPECT_EQ(facts_of(log).lines, 3000U);
}

} // namespace
} // namespace tieshard

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
  EXPECT_EQ(cleaned("[rank0]:[rank3]: 5: x").text, "5: x");
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
  EXPECT_EQ(facts.exceptions[0].message, "model.norm.weight: MISSING"); // the row, and not the legend
  EXPECT_EQ(facts.exceptions[0].line, 1U);
}

TEST(LogFacts, AnExceptionAfterFramesMayHaveAnyName) {
  const LogFacts facts = facts_of(
      "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    q.get()\nqueue.Empty\nEmpty: no\n");
  ASSERT_THAT(facts.exceptions, SizeIs(1));
  EXPECT_EQ(facts.exceptions[0].type, "Empty");
}

TEST(LogFacts, ATracebackThatIsCutIsCounted) {
  const LogFacts facts = facts_of("Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n");
  EXPECT_THAT(facts.exceptions, SizeIs(0));
  EXPECT_EQ(facts.tracebacks_cut, 1U);
}

TEST(LogFacts, AKeyEndsItsMessage) {
  const LogFacts facts = facts_of("KeyError: 'lm_head.weight'\nrecovered; going on\n");
  EXPECT_EQ(facts.exceptions.at(0).message, "'lm_head.weight'");
}

TEST(LogFacts, LinesThatSayHowAProcessEndedAreTaken) {
  for (const char* line :
       {"Out of memory: Killed process 1234 (python) total-vm:100kB",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.",
        "[2026-09-01 00:00:00] elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 0",
        "  exitcode  : -9 (pid: 1)",
        "Killed",
        "command terminated with exit code 137",
        "[rank1]:[E901 12:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=1)"}) {
    const LogFacts facts = facts_of(line);
    ASSERT_THAT(facts.exceptions, SizeIs(1)) << line;
    EXPECT_EQ(facts.exceptions[0].type, kEndLine);
  }
  for (const char* line : {"exitcode: -90", "exit code 0", "exitcode: -15", "Killed it!", "137 steps"}) {
    EXPECT_THAT(facts_of(line).exceptions, SizeIs(0)) << line;
  }
}

TEST(LogFacts, BytesThatAreNoTextAreSaidToBe) {
  using namespace std::string_literals;
  EXPECT_EQ(facts_of("\x1F\x8B\x08 abc\nKeyError: 'a.weight'\n").binary, "gzip");
  EXPECT_EQ(facts_of("\xFF\xFET\0r\0"s).binary, "UTF-16 text");
  EXPECT_EQ(facts_of("\x40\1\0\0\0\0\0\0{\"a\": 1}"s).binary, "bytes with zeros");
  EXPECT_EQ(facts_of("\0\0\0a log that was truncated\nKeyError: 'a.weight'\n"s).exceptions.size(), 1U);
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

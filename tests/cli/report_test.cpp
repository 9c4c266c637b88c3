#include "tieshard/cli/report.h"

#include <new>
#include <sstream>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Diagnostic kProblem = {.code = Code::kShapeMismatch,
                             .what = "a stored shape is not the expected one",
                             .where = "a.weight",
                             .why = "expected [2], got [3]",
                             .fix = "export again"};

struct Outcome {
  int status;
  std::string err;
};

Outcome outcome(const std::function<int()>& verb) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = run_verb(verb, {.out = {.text = out}, .err = {.text = err}});
  return {status, err.str()};
}

template <typename Kind>
int status_of() {
  return outcome([]() -> int { throw Kind(kProblem); }).status;
}

TEST(RunVerb, GivesTheStatusThatSaysWhoCanAct) {
  EXPECT_EQ(outcome([] { return 1; }).status, 1);
  EXPECT_EQ(status_of<InputError>(), 2);
  EXPECT_EQ(status_of<UsageError>(), 3);
  EXPECT_EQ(status_of<PeerError>(), 4);
  EXPECT_EQ(status_of<InternalError>(), 70);
}

TEST(RunVerb, PrintsTheWholeDiagnosticBehindItsLevel) {
  EXPECT_EQ(outcome([]() -> int { throw InputError(kProblem); }).err,
            "error  a stored shape is not the expected one [shape-mismatch]\n"
            "         where: a.weight\n"
            "         why:   expected [2], got [3]\n"
            "         fix:   export again\n");
}

TEST(RunVerb, CallsAnUnknownExceptionABugAndShowsItsWords) {
  const Outcome known = outcome([]() -> int { throw std::out_of_range("the words"); });
  EXPECT_EQ(known.status, 70);
  EXPECT_THAT(known.err, AllOf(HasSubstr("[bug]"), HasSubstr("the words")));
  EXPECT_EQ(outcome([]() -> int { throw 5; }).status, 70);
}

TEST(RunVerb, TellsARefusedAllocationFromABug) {
  const Outcome refused = outcome([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(refused.status, 4);
  EXPECT_THAT(refused.err, StartsWith("error  memory could not be allocated [out-of-memory]"));
}

TEST(RunVerb, FailsWhenItsOutputCannotBeWritten) {
  std::ostringstream out;
  std::ostringstream err;
  const Console console{.out = {.text = out}, .err = {.text = err}};
  const auto verb = [&] {
    out.setstate(std::ios::badbit);
    return kExitSuccess;
  };
  EXPECT_EQ(run_verb(verb, console), kExitPeer);
  EXPECT_THAT(err.str(), HasSubstr("[io-failed]"));
}

TEST(PrintDiagnostic, LeavesEmptyPartsOutAndKeepsPartsOfSeveralLinesInTheirColumn) {
  std::ostringstream text;
  print_diagnostic({.text = text}, {.level = Level::kNote, .code = Code::kBug, .what = "a", .fix = "one\ntwo"});
  EXPECT_EQ(text.str(),
            "note  a [bug]\n"
            "         fix:   one\n"
            "                two\n");
}

TEST(PrintDiagnostic, BreaksLongPartsOnATerminalOnly) {
  const Diagnostic finding = {.level = Level::kWarning, .code = Code::kBug, .what = "a", .why = "aaaa bbbb cccc dddd"};
  std::ostringstream terminal;
  print_diagnostic({.text = terminal, .terminal = true, .width = 30}, finding);
  EXPECT_THAT(terminal.str(), HasSubstr("why:   aaaa bbbb\n                cccc dddd\n"));
  std::ostringstream pipe;
  print_diagnostic({.text = pipe, .width = 30}, finding);
  EXPECT_THAT(pipe.str(), HasSubstr("why:   aaaa bbbb cccc dddd\n"));
}

TEST(PrintDiagnostic, SpellsControlCharactersOfAFileOut) {
  std::ostringstream text;
  print_diagnostic({.text = text}, {.code = Code::kBug, .what = "a", .where = "name\x1b[31m"});
  EXPECT_THAT(text.str(), HasSubstr("name\\x1b[31m\n"));
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/cli/progress.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

struct Streams {
  std::ostringstream out;
  std::ostringstream err;

  Console console(bool terminal, int width = 80) {
    return {.out = {.text = out, .terminal = terminal, .width = width},
            .err = {.text = err, .terminal = terminal, .width = width}};
  }
};

TEST(Progress, GivesAPipeOnePlainLineAtTheEnd) {
  Streams streams;
  Progress progress(streams.console(false), "load", 1024);
  progress.update(512);
  EXPECT_EQ(streams.out.str(), "");
  progress.finish("3 tensors in 12 ms");
  EXPECT_EQ(streams.out.str(), "load   3 tensors in 12 ms\n");
  EXPECT_EQ(streams.err.str(), "");
}

TEST(Progress, DrawsABarOnATerminalAndReplacesItByTheResult) {
  Streams streams;
  Progress progress(streams.console(true), "load", 1024);
  progress.update(512);
  EXPECT_THAT(streams.err.str(), EndsWith("\r\x1b[Kload   ############------------  512 B of 1.0 KiB"));
  progress.finish("3 tensors in 12 ms");
  EXPECT_THAT(streams.err.str(), EndsWith("\r\x1b[K"));
  EXPECT_EQ(streams.out.str(), "load   ########################  3 tensors in 12 ms\n");
}

TEST(Progress, DrawsNothingWhenNothingChanged) {
  Streams streams;
  Progress progress(streams.console(true), "load", 1024);
  progress.update(7);
  const std::string before = streams.err.str();
  progress.update(7);
  EXPECT_EQ(streams.err.str(), before);
}

TEST(Progress, TakesAnUnfinishedBarOffTheTerminal) {
  Streams streams;
  {
    Progress progress(streams.console(true), "load", 1024);
    EXPECT_THAT(streams.err.str(), HasSubstr("of 1.0 KiB"));
  }
  EXPECT_THAT(streams.err.str(), EndsWith("\r\x1b[K"));
  EXPECT_EQ(streams.out.str(), "");
}

TEST(Progress, KeepsTheBarWithinANarrowTerminal) {
  Streams streams;
  Progress progress(streams.console(true, 20), "load", 1024);
  EXPECT_EQ(streams.err.str(), "\r\x1b[Kload   ------------");
}

TEST(Progress, StaysWithinItsBoundsForNothingAndForTooMuch) {
  Streams streams;
  Progress nothing(streams.console(true), "load", 0);
  EXPECT_THAT(streams.err.str(), HasSubstr("########################  0 B of 0 B"));
  Progress too_much(streams.console(true), "load", 10);
  too_much.update(20);
  EXPECT_THAT(streams.err.str(), EndsWith("########################  10 B of 10 B"));
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/cli/man_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/cli/completion.h"

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::run;

const std::vector<VerbEntry> kVerbs = {
    {.name = "look",
     .help = "Look at 'it'\\",
     .footer = "Examples:\n.dots and 'quotes'\n",
     .flags = {{.name = "DIR", .value = "TEXT", .help = "Where", .required = true},
               {.name = "--side", .value = "left|right", .words = {"left", "right"}, .help = "Which side"},
               {.name = "--all", .help = "All of it"}}},
    {.name = "train", .help = "Compute", .computes = true}};

TEST(ManPage, EscapesWhatRoffWouldTakeForItself) {
  const std::string page = man_page(kVerbs, "About.", ".first\n'second\n");
  EXPECT_THAT(page, HasSubstr("Look at 'it'\\e."));
  EXPECT_THAT(page, HasSubstr("\n\\&.dots and 'quotes'\n"));
  EXPECT_THAT(page, HasSubstr("\n\\&.first\n\\&'second\n"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-side\\fR \\fIleft|right\\fR\nWhich side\n"));
  EXPECT_THAT(page, HasSubstr("\\fBtieshard look\\fR \\fIDIR\\fR [\\fIOPTIONS\\fR]"));
  EXPECT_THAT(page, HasSubstr("\\fBtieshard train \\-\\-help\\fR lists them"));
}

TEST(ManPage, HasEveryVerbAndFlagOfTheHelp) {
  const std::string page = run({"man"}).out;
  for (const char* part : {".SS plan", ".SS doctor", "\\-\\-fail\\-on", ".SS train", ".SH ENVIRONMENT", "NO_COLOR"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

TEST(Completion, QuotesForEachShell) {
  EXPECT_THAT(completion_script(kVerbs, "fish"), HasSubstr("-a look -d 'Look at \\'it\\'\\\\'"));
  EXPECT_THAT(completion_script(kVerbs, "fish"), HasSubstr("-l side -r -f -a 'left right' -d 'Which side'\n"));
  EXPECT_THAT(completion_script(kVerbs, "fish"), HasSubstr("-l all -d 'All of it'\n"));
  EXPECT_THAT(completion_script(kVerbs, "bash"), HasSubstr("look) flags='--side --all --help' ;;"));
  EXPECT_THAT(completion_script(kVerbs, "bash"), Not(HasSubstr("train) flags")));
  EXPECT_THAT(completion_script(kVerbs, "zsh"), HasSubstr("bashcompinit"));
}

TEST(Completion, KnowsTheShellsThatThereAre) {
  EXPECT_EQ(run({"completion", "bash"}).status, 0);
  EXPECT_EQ(run({"completion", "tcsh"}).status, 2);
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/cli/table.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

std::string printed(const Table& table, std::size_t indent = 0, bool colour = false) {
  std::ostringstream text;
  table.print({.text = text, .colour = colour}, indent);
  return text.str();
}

TEST(Table, PutsNumbersToTheRightAndLeavesNoBlanksAtTheEnd) {
  Table table({left("unit"), right("size"), left("why")});
  table.add({"root", "9", "tied"});
  table.add({"layer", "1,000", ""});
  EXPECT_EQ(printed(table),
            "unit    size  why\n"
            "root       9  tied\n"
            "layer  1,000\n");
}

TEST(Table, WithoutTitlesHasNoTitleLine) {
  Table table({left(), left()});
  table.add({"a", "b"});
  EXPECT_EQ(printed(table, 2), "  a  b\n");
}

TEST(Table, WithoutRowsPrintsNothing) {
  EXPECT_EQ(printed(Table(std::vector<Column>{{"unit"}})), "");
}

TEST(Table, CountsCodePointsAndNotBytes) {
  Table table({left(), left()});
  table.add({"été", "1"});
  table.add({"abcd", "2"});
  EXPECT_EQ(printed(table), "été   1\nabcd  2\n");
}

TEST(Table, SpellsControlCharactersOut) {
  Table table(std::vector<Column>(1));
  table.add({"a\x1b[2Jb"});
  EXPECT_EQ(printed(table), "a\\x1b[2Jb\n");
}

TEST(Table, PaintsOnlyTheTitleAndOnlyWithColours) {
  Table table(std::vector<Column>{{"t"}});
  table.add({"x"});
  EXPECT_EQ(printed(table, 0, true), "\x1b[2mt\x1b[0m\nx\n");
}

TEST(Table, RefusesARowThatIsTooLong) {
  Table table(std::vector<Column>{{"t"}});
  EXPECT_THROW(table.add({"x", "y"}), InternalError);
}

} // namespace
} // namespace tieshard::cli

#include "tieshard/core/report/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

using ::testing::HasSubstr;

TEST(Html, TextIsNeverMarkup) {
  EXPECT_EQ(html_text("<script>alert('x' & \"y\")</script>"),
            "&lt;script&gt;alert(&#39;x&#39; &amp; &quot;y&quot;)&lt;/script&gt;");
  EXPECT_EQ(html_text("caf\xC3\xA9"), "caf\xC3\xA9");
}

TEST(Html, WhatNoDocumentMayHoldIsReplaced) {
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(html_text(std::string("a\0b\x1B[c\x7F", 7)), concat("a", replaced, "b", replaced, "[c", replaced));
  EXPECT_EQ(html_text("a\xFF"), "a" + replaced);
  EXPECT_EQ(html_text("a\nb\tc"), "a\nb\tc");
}

TEST(Html, ALongNameIsCutInItsMiddleBetweenCharacters) {
  EXPECT_EQ(html_name("short"), "short");
  EXPECT_EQ(html_name("abcdefgh", 4), "<span title=\"abcdefgh\">ab&hellip;gh</span>");
  EXPECT_THAT(html_name("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 4),
              HasSubstr(">\xC3\xA9\xC3\xA9&hellip;\xC3\xA9\xC3\xA9<"));
  EXPECT_LT(html_name(std::string(1'000'000, 'x')).size(), 3000U);
}

TEST(Html, TablesHaveHeadingsForTheirRowsAndColumns) {
  const std::string table = to_html({.caption = "A & B", .columns = {"name", "n"}, .rows = {{"x", "1"}}});
  EXPECT_THAT(table, HasSubstr("<caption>A &amp; B</caption>"));
  EXPECT_THAT(table, HasSubstr("<th scope=\"col\">name</th><th scope=\"col\" class=\"number\">n</th>"));
  EXPECT_THAT(table, HasSubstr("<th scope=\"row\">x</th><td class=\"number\">1</td>"));
}

TEST(Html, CountsHavePlurals) {
  EXPECT_EQ(number_of(1, "rank"), "1 rank");
  EXPECT_EQ(number_of(1000, "rank"), "1,000 ranks");
}

} // namespace
} // namespace tieshard

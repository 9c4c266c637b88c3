#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/report/bars.h"
#include "tieshard/core/report/curve.h"
#include "tieshard/core/report/findings.h"
#include "tieshard/core/report/tie_drawing.h"

namespace tieshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(Bars, AreAsWideAsTheirBytesAndTheLimitIsALine) {
  const std::string bars = html_bars("Bytes", {{.label = "a<b", .bytes = 100}, {.label = "c", .bytes = 50}}, 80);
  EXPECT_THAT(bars, HasSubstr("a&lt;b"));
  EXPECT_THAT(bars, HasSubstr("<i class=\"over\" style=\"width:100.00%\">"));
  EXPECT_THAT(bars, HasSubstr("<i style=\"width:50.00%\">"));
  EXPECT_EQ(count_of(bars, "<b style=\"left:80.00%\">"), 2U);
  EXPECT_THAT(bars, HasSubstr("over the limit"));
  EXPECT_THAT(html_bars("Bytes", {{.label = "a", .bytes = 0}}), HasSubstr("width:0.00%"));
}

TEST(Bars, ThousandsAreFoldedAndThePageStaysSmall) {
  std::vector<Bar> many;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    many.push_back({.label = "unit", .bytes = i});
  }
  const std::string bars = html_bars("Bytes", many);
  EXPECT_EQ(count_of(bars, "class=\"track\""), 24U);
  EXPECT_THAT(bars, HasSubstr("The 24 largest of 20000."));
  EXPECT_THAT(bars, HasSubstr("and 18000 more"));
  EXPECT_LT(bars.size(), 400'000U);
}

TEST(Curve, SaysInWordsWhatItDraws) {
  const std::string curve = html_curve("Loss", {{1, 4.0}, {2, 2.0}, {3, 3.0}}, {{2, 2.5}});
  EXPECT_THAT(curve, HasSubstr("role=\"img\" aria-label=\"Loss: 4 at step 1, 3 at step 3; between 2 and 4\""));
  EXPECT_THAT(curve, HasSubstr("Dots: evaluations, the last 2.5"));
  EXPECT_EQ(count_of(curve, "<circle class=\"two\""), 1U);
  EXPECT_THAT(html_curve("Rate", {{1, 5.0}, {2, 5.0}}), HasSubstr("between 5 and 5"));
}

TEST(Curve, LeavesAGapWhereAValueIsNoNumber) {
  const std::string curve = html_curve("Norm", {{1, 1.0}, {2, NAN}, {3, 2.0}, {4, 1.0}});
  EXPECT_EQ(count_of(curve, "M"), 2U);
  EXPECT_THAT(curve, Not(HasSubstr("\"nan")));
  EXPECT_THAT(html_curve("Norm", {{1, NAN}}), HasSubstr("no value yet"));
  EXPECT_THAT(html_curve("Norm", {}), HasSubstr("no value yet"));
  EXPECT_THAT(html_curve("Norm", {{7, 1.0}}), HasSubstr("<circle"));
}

TEST(Curve, KeepsASpikeAmongManyPoints) {
  std::vector<CurvePoint> points;
  for (std::int64_t i = 1; i <= 100'000; ++i) {
    points.push_back({i, i == 54'321 ? 9.0 : 1.0});
  }
  const std::string curve = html_curve("Loss", points);
  EXPECT_LT(curve.size(), 20'000U);
  EXPECT_THAT(curve, HasSubstr(" 12.0L")) << "the top of the frame";
}

TEST(TieDrawing, DrawsNamesAndGivesTheEvidence) {
  EXPECT_THAT(html_ties({}), HasSubstr("No two names"));
  const TieGroup group{
      .canonical = "a.weight",
      .aliases = {{.name = "b<weight", .reasons = {{.evidence = TieEvidence::kConfigFlag, .text = "config & flag"}}}}};
  const std::string ties = html_ties({group});
  EXPECT_THAT(ties, HasSubstr("aria-label=\"a.weight is one weight with b&lt;weight\""));
  EXPECT_THAT(ties, HasSubstr("config &amp; flag"));
  EXPECT_THAT(ties, HasSubstr("one storage, 2 names"));
  EXPECT_EQ(count_of(html_ties(std::vector<TieGroup>(50, group)), "<svg"), 12U);
}

TEST(Findings, HaveTheirFourParts) {
  EXPECT_THAT(html_findings({}), HasSubstr("Nothing to say"));
  const std::string finding = html_findings(
      {{.level = Level::kWarning, .code = Code::kTieConflict, .what = "w<", .where = "x", .why = "y", .fix = "z"}});
  for (const char* part :
       {"w&lt;", "<dt>where</dt><dd>x", "<dt>why</dt><dd>y", "<dt>fix</dt><dd>z", "tie-conflict", "finding warning"}) {
    EXPECT_THAT(finding, HasSubstr(part));
  }
}

} // namespace
} // namespace tieshard

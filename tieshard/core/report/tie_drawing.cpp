#include "tieshard/core/report/tie_drawing.h"

#include "tieshard/core/base/error.h"
#include "tieshard/core/report/html.h"

namespace tieshard {
namespace {

constexpr std::size_t kMostFigures = 12;
constexpr std::size_t kMostNames = 8; ///< of a group, drawn
constexpr int kRow = 40;
constexpr int kWidth = 640;
constexpr int kBox = 280;
constexpr std::size_t kLetters = 36; ///< that a box holds

std::string box(int x, int y, const std::string& name) {
  return concat("<rect class=\"box\" x=\"",
                x,
                "\" y=\"",
                y,
                "\" width=\"",
                kBox,
                "\" height=\"28\" rx=\"5\"/><text x=\"",
                x + kBox / 2,
                "\" y=\"",
                y + 18,
                "\" text-anchor=\"middle\">",
                html_text(name.size() <= kLetters ? name : concat("..", name.substr(name.size() - kLetters + 2))),
                "</text>");
}

/// Names on the left, the weight on the right.
std::string figure(const TieGroup& group) {
  std::vector<std::string> names{group.canonical};
  for (const TieAlias& alias : group.aliases) {
    if (names.size() < kMostNames) {
      names.push_back(alias.name);
    }
  }
  const int height = kRow * static_cast<int>(names.size());
  const int middle = height / 2;
  std::string drawing;
  std::string words = concat(group.canonical, " is one weight with");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const int y = kRow * static_cast<int>(i) + 6;
    drawing += concat("<path class=\"link\" d=\"M",
                      kBox + 4,
                      " ",
                      y + 14,
                      "C",
                      kBox + 70,
                      " ",
                      y + 14,
                      " ",
                      kBox + 50,
                      " ",
                      middle,
                      " ",
                      kBox + 116,
                      " ",
                      middle,
                      "\"/>",
                      box(4, y, names[i]));
    words += i == 0 ? "" : concat(i == 1 ? " " : ", ", names[i]);
  }
  drawing += concat("<circle class=\"fill-one\" r=\"6\" cx=\"",
                    kBox + 122,
                    "\" cy=\"",
                    middle,
                    "\"/><text x=\"",
                    kBox + 138,
                    "\" y=\"",
                    middle + 4,
                    "\">one storage, ",
                    group.aliases.size() + 1,
                    " names</text>");
  return concat("<figure><svg viewBox=\"0 0 ",
                kWidth,
                " ",
                height,
                "\" role=\"img\" aria-label=\"",
                html_text(words),
                "\">",
                drawing,
                "</svg></figure>\n");
}

} // namespace

std::string html_ties(const std::vector<TieGroup>& groups) {
  if (groups.empty()) {
    return "<p>No two names share a weight.</p>\n";
  }
  std::string text;
  HtmlTable table{
      .caption = "Names, and why they are one weight", .columns = {"name", "is", "because"}, .numbers_from = 3};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    text += i < kMostFigures ? figure(groups[i]) : "";
    for (const TieAlias& alias : groups[i].aliases) {
      std::string reasons;
      for (const TieReason& reason : alias.reasons) {
        reasons += concat(reasons.empty() ? "" : "; ", html_text(reason.text));
      }
      table.rows.push_back({concat("<span class=\"name\">", html_name(alias.name), "</span>"),
                            concat("<span class=\"name\">", html_name(groups[i].canonical), "</span>"),
                            reasons});
    }
  }
  return text + to_html(table);
}

} // namespace tieshard

#include "tieshard/core/report/bars.h"

#include <algorithm>
#include <cstdio>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/report/html.h"

namespace tieshard {
namespace {

constexpr std::size_t kMostBars = 24;
constexpr std::size_t kMostRows = 2000; ///< of the table: a page stays readable by a browser

std::string percent(std::uint64_t part, std::uint64_t whole) {
  char text[16];
  std::snprintf(
      text, sizeof(text), "%.2f", whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string bar_html(const Bar& bar, std::uint64_t widest, std::uint64_t limit) {
  const bool over = limit > 0 && bar.bytes > limit;
  const std::string line =
      limit > 0 && limit <= widest ? concat("<b style=\"left:", percent(limit, widest), "%\"></b>") : "";
  return concat("<li><div class=\"row\"><span class=\"name\">",
                html_name(bar.label),
                "</span><span>",
                format_bytes(bar.bytes),
                bar.detail.empty() ? "" : concat(" &middot; ", html_text(bar.detail)),
                over ? " &middot; over the limit" : "",
                "</span></div>",
                "<div class=\"track\" aria-hidden=\"true\"><i",
                over ? " class=\"over\"" : "",
                " style=\"width:",
                percent(bar.bytes, widest),
                "%\"></i>",
                line,
                "</div></li>\n");
}

HtmlTable table_of(std::string_view what, const std::vector<Bar>& bars) {
  HtmlTable table{.caption = std::string(what), .columns = {"", "bytes", ""}};
  for (const Bar& bar : bars) {
    if (table.rows.size() == kMostRows) {
      table.rows.push_back({concat("and ", bars.size() - kMostRows, " more"), "", ""});
      break;
    }
    table.rows.push_back(
        {html_name(bar.label), format_count(static_cast<std::int64_t>(bar.bytes)), html_text(bar.detail)});
  }
  return table;
}

} // namespace

std::string html_bars(std::string_view what, const std::vector<Bar>& bars, std::uint64_t limit) {
  std::uint64_t widest = limit;
  for (const Bar& bar : bars) {
    widest = std::max(widest, bar.bytes);
  }
  std::vector<Bar> shown = bars;
  if (bars.size() > kMostBars) {
    std::ranges::stable_sort(shown, std::ranges::greater(), &Bar::bytes);
    shown.resize(kMostBars);
  }
  std::string text = "<ul class=\"bars\">\n";
  for (const Bar& bar : shown) {
    text += bar_html(bar, widest, limit);
  }
  text += "</ul>\n";
  if (limit > 0) {
    text += concat("<p class=\"number-note\">The line is the limit, ", format_bytes(limit), ".</p>\n");
  }
  if (bars.size() > kMostBars) {
    text += concat("<p>The ", kMostBars, " largest of ", bars.size(), ".</p>\n");
  }
  return text + html_details(concat(what, " as a table"), to_html(table_of(what, bars)));
}

} // namespace tieshard

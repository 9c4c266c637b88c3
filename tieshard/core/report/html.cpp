#include "tieshard/core/report/html.h"

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/base/utf8.h"

namespace tieshard {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Where characters begin: a byte that continues one is none.
bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) {
    count += continues(c) ? 0 : 1;
  }
  return count;
}

/// The first `count` characters.
std::string_view first_of(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues(text[at]) && count-- == 0) {
      break;
    }
  }
  return text.substr(0, at);
}

/// The last `count` characters.
std::string_view last_of(std::string_view text, std::size_t count) {
  std::size_t at = text.size();
  while (at > 0 && count > 0) {
    --at;
    count -= continues(text[at]) ? 0 : 1;
  }
  return text.substr(at);
}

std::string reference(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return std::string(1, c);
  }
}

} // namespace

std::string html_text(std::string_view text) {
  const bool valid = !first_byte_that_is_not_utf8(text);
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
    if (control || (!valid && byte >= 0x80)) {
      result += kReplacement;
    } else {
      result += reference(c);
    }
  }
  return result;
}

std::string html_name(std::string_view text, std::size_t most) {
  if (characters(text) <= most) {
    return html_text(text);
  }
  const std::size_t half = most / 2;
  const std::string shown = concat(html_text(first_of(text, half)), "&hellip;", html_text(last_of(text, half)));
  constexpr std::size_t kLongestTitle = 2000;
  return concat("<span title=\"", html_text(first_of(text, kLongestTitle)), "\">", shown, "</span>");
}

std::string to_html(const HtmlTable& table) {
  std::string text = concat("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"",
                            html_text(table.caption),
                            "\"><table><caption>",
                            html_text(table.caption),
                            "</caption><thead><tr>");
  const auto align = [&](std::size_t column) { return column >= table.numbers_from ? " class=\"number\"" : ""; };
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    text += concat("<th scope=\"col\"", align(i), ">", html_text(table.columns[i]), "</th>");
  }
  text += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    text += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += i == 0 ? concat("<th scope=\"row\">", row[i], "</th>") : concat("<td", align(i), ">", row[i], "</td>");
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string number_of(std::size_t count, std::string_view thing) {
  return concat(format_count(static_cast<std::int64_t>(count)), " ", thing, count == 1 ? "" : "s");
}

std::string html_section(std::string_view heading, const std::string& body) {
  return concat("<section>\n<h2>", html_text(heading), "</h2>\n", body, "</section>\n");
}

std::string html_details(std::string_view summary, const std::string& body) {
  return concat("<details><summary>", html_text(summary), "</summary>\n", body, "</details>\n");
}

} // namespace tieshard

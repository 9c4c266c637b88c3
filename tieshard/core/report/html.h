// tieshard/core/report/html.h
//
// Text into HTML: nothing that comes from a file can become markup.
//
// Flow:   the sections -> [this] -> page
// Source: the HTML standard: character references, and the characters that a document may hold.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

/// `text` as the content of an element or of a quoted attribute: & < > " ' become references, control characters and
/// bytes that are not UTF-8 become U+FFFD.
std::string html_text(std::string_view text);

/// `text` cut in its middle to at most `most` characters, escaped; whole, in a title attribute, where it was cut. A
/// name that is thousands of bytes long does not break a page.
std::string html_name(std::string_view text, std::size_t most = 80);

/// A table with a caption. Cells are HTML already; the first of each row is its heading. Columns from `numbers_from` on
/// are set right.
struct HtmlTable {
  std::string caption{};
  std::vector<std::string> columns{};
  std::size_t numbers_from = 1;
  std::vector<std::vector<std::string>> rows{};
};

std::string to_html(const HtmlTable& table);

/// "1 rank", "8 ranks".
std::string number_of(std::size_t count, std::string_view thing);

/// A section with a heading of the second level; `body` is HTML.
std::string html_section(std::string_view heading, const std::string& body);

/// `body` folded under `summary`, which is text.
std::string html_details(std::string_view summary, const std::string& body);

} // namespace tieshard

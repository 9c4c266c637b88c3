#include "tieshard/cli/table.h"

#include <algorithm>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

std::string padded(const std::string& text, std::size_t width, Align align) {
  const std::string blanks(width - std::min(width, display_width(text)), ' ');
  return align == Align::kLeft ? text + blanks : blanks + text;
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

} // namespace

std::size_t display_width(std::string_view text) {
  // Continuation bytes of UTF-8 are 10xxxxxx.
  const auto starts_code_point = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_code_point));
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<std::string> cells) {
  if (cells.size() > columns_.size()) {
    throw InternalError({.code = Code::kBug,
                         .what = "a table row has more cells than the table has columns",
                         .why = concat("at most ", columns_.size(), " cells, got ", cells.size())});
  }
  cells.resize(columns_.size());
  for (std::string& cell : cells) {
    cell = printable(cell);
  }
  rows_.push_back(std::move(cells));
}

void Table::print(const Stream& stream, std::size_t indent) const {
  if (rows_.empty()) {
    return;
  }
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) {
      width = std::max(width, display_width(row[c]));
    }
    widths.push_back(width);
  }
  const auto line = [&](const auto& cell_of) {
    std::string text(indent, ' ');
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      text += concat(c == 0 ? "" : "  ", padded(cell_of(c), widths[c], columns_[c].align));
    }
    return without_trailing_blanks(std::move(text));
  };
  const auto titled = [](const Column& column) { return !column.title.empty(); };
  if (std::any_of(columns_.begin(), columns_.end(), titled)) {
    stream.text << stream.paint(Tone::kFaint, line([&](std::size_t c) { return columns_[c].title; })) << "\n";
  }
  for (const auto& row : rows_) {
    stream.text << line([&](std::size_t c) { return row[c]; }) << "\n";
  }
}

} // namespace tieshard::cli

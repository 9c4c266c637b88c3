// tieshard/cli/table.h
//
// Rows of text under each other: numbers to the right, words to the left.
//
// Flow: every verb -> [this] -> console

#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tieshard/cli/console.h"

namespace tieshard::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title{}; ///< empty titles in all columns: no title line
  Align align = Align::kLeft;
};

/// A column of words, and one of numbers.
inline Column left(std::string title = {}) {
  return {.title = std::move(title), .align = Align::kLeft};
}
inline Column right(std::string title = {}) {
  return {.title = std::move(title), .align = Align::kRight};
}

/// Columns as wide as their widest cell, two blanks between them, no blanks at the end of a line.
class Table {
 public:
  explicit Table(std::vector<Column> columns);

  /// One cell a column; missing ones are empty. Pre: not more cells than columns.
  void add(std::vector<std::string> cells);

  bool empty() const noexcept {
    return rows_.empty();
  }
  /// Prints the titles and rows, each line after `indent` blanks. A table without rows prints nothing.
  void print(const Stream& stream, std::size_t indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Columns that UTF-8 text takes on a terminal: its code points (no wide or combining ones are expected).
std::size_t display_width(std::string_view text);

} // namespace tieshard::cli

// tieshard/core/report/bars.h
//
// Amounts side by side: a bar for each, its number beside it, and the same as a table.
//
// Flow: model_report, run_report -> [this] -> html

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

struct Bar {
  std::string label{}; ///< text
  std::uint64_t bytes = 0;
  std::string detail{}; ///< text behind the bytes; may be empty
};

/// @param limit  bytes at which a line stands, and above which a bar has the colour of an error; 0: none
/// More than 24 bars are folded: the largest are shown, all stand in the table. `what` names the table.
std::string html_bars(std::string_view what, const std::vector<Bar>& bars, std::uint64_t limit = 0);

} // namespace tieshard

// tieshard/core/failures/log_lines.h
//
// A log line by line, without what launchers and terminals put around each line.
//
// Flow:   a file or standard input -> [this] -> log_facts
// Source: the prefixes of torchrun ([rank0]:, [default0]:), srun --label (0: ), mpirun --tag-output ([1,0]<stderr>:);
// ECMA-48
//         for the escape sequences of terminals.

#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

namespace tieshard {

struct LogLine {
  std::string text{};       ///< without escapes, carriage returns and prefixes; at most kLongestLogLine bytes
  int rank = -1;            ///< that the prefix names; -1: none
  std::uint64_t number = 0; ///< from 1
};

inline constexpr std::size_t kLongestLogLine = 16 << 10;

/// `raw` without escape sequences, the launcher's prefix and a time stamp in front. Sets line.text and line.rank.
void clean_log_line(std::string_view raw, LogLine& line);

/// Reads one line of any length, keeping its first kLongestLogLine bytes. @return false at the end
bool next_log_line(std::istream& in, LogLine& line);

} // namespace tieshard

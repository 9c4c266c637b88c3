// tieshard/core/failures/log_lines.h
//
// A log line by line, without what launchers and terminals put around each line.
//
// Flow:   a file or standard input -> [this] -> log_prefixes, log_facts
// Source: the prefixes of torchrun ([rank0]:, and [default0]: with a role's name), srun --label (0: ), mpirun
//         --tag-output ([1,0]<stderr>:); ECMA-48 for the escape sequences of terminals.

#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

namespace tieshard {

struct LogLine {
  std::string raw{};        ///< as it was read; at most kLongestLogLine bytes
  std::string plain{};      ///< without escapes and carriage returns
  std::string text{};       ///< without prefixes, too
  int rank = -1;            ///< that a prefix names; -1: none
  std::uint64_t number = 0; ///< from 1
};

inline constexpr std::size_t kLongestLogLine = 16 << 10;

/// `raw` without escape sequences, launchers' prefixes and time stamps in front, however many there are. Sets
/// line.plain, line.text and line.rank.
void clean_log_line(std::string_view raw, LogLine& line);

/// Reads one line of any length, keeping its first kLongestLogLine bytes. @return false at the end
bool next_log_line(std::istream& in, LogLine& line);

/// What bytes that are no text are, by how a line of them begins: "gzip", "UTF-16 text", "bytes with zeros"; empty:
/// it may be text. Zeros at the beginning alone are what a truncated log leaves.
std::string_view binary_kind(std::string_view raw);

} // namespace tieshard

// tieshard/core/failures/log_prefixes.h
//
// What loggers, launchers and people put in front of every line of a traceback, learned from its first line:
// "node001: [rank3]: ", "(RayTrainWorker pid=1) ", "2026-09-01 12:00:00,123 - root - ERROR - ", "> ", an indentation.
//
// Flow: log_lines -> [this] -> log_facts

#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "tieshard/core/failures/log_lines.h"

namespace tieshard {

inline constexpr std::string_view kTraceback = "Traceback (most recent call last)";

class LogPrefixes {
 public:
  /// Takes the longest learned prefix off `line`, where it has one: sets its text, and its rank where the prefix names
  /// one. @return which lines belong together: those of a rank, or of a learned prefix
  std::uint64_t strip(LogLine& line);

  /// Learns what stands in front of the word Traceback in `line`. @return as strip, of the lines that follow
  std::uint64_t learn(const LogLine& line);

 private:
  struct Known {
    std::string prefix{};
    std::string key{}; ///< the prefix without its times: the same for all lines of one writer
    int rank = -1;
    std::uint64_t id = 0;
  };

  std::deque<Known> known_; ///< at most 256, the newest last
  std::uint64_t learned_ = 0;
};

} // namespace tieshard

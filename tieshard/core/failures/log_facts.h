// tieshard/core/failures/log_facts.h
//
// What a log shows, before anybody says what it means: exceptions with their frames, by rank; frameworks; telling
// lines.
//
// Flow:   log_lines, log_prefixes -> [this] -> recognise
// Source: Python's traceback module for the form of a traceback.

#pragma once

#include <cstdint>
#include <istream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

struct LogFrame {
  std::string file{};
  std::string function{};
  std::string source{}; ///< the line of the program, where the traceback shows it
};

/// An exception, with or without the traceback in front of it; or a line that says what an exception would.
struct LogException {
  std::string type{};    ///< without its module: "KeyError"; kWarningLine, kEndLine
  std::string message{}; ///< its lines joined with spaces, at most 4 KiB
  std::vector<LogFrame> frames{};
  int rank = -1;
  std::uint64_t line = 0; ///< of the type

  /// Whether a frame's file or function contains `word`.
  bool came_through(std::string_view word) const;
  /// The last frame, for people: "fsdp_utils.py, fsdp2_load_full_state_dict"; empty without a traceback.
  std::string place() const;
};

/// Types of lines that are no exception: weights that no file gave their values, and how a process or a wait ended.
inline constexpr const char* kWarningLine = "warning";
inline constexpr const char* kEndLine = "log line";

struct LogFacts {
  std::uint64_t lines = 0;
  std::string binary{};                   ///< what the bytes are that are no text: "gzip"; then nothing else is read
  std::size_t tracebacks_cut = 0;         ///< that end without their exception
  std::vector<LogException> exceptions{}; ///< in the log's order; of more than 256 the first ones
  std::vector<std::string> telling{};     ///< lines of warnings and ends that are no exception, at most 64
  std::set<std::string> frameworks{};     ///< "accelerate", "torch", ..
  std::set<int> ranks{};
};

/// Reads all of `in`, in memory that does not grow with it.
LogFacts read_log(std::istream& in);

} // namespace tieshard

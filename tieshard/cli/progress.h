// tieshard/cli/progress.h
//
// A bar for a person at a terminal; one plain line for a pipe.
//
// Flow: cli/runtime (load, export) -> [this] -> console

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tieshard/cli/console.h"

namespace tieshard::cli {

/// Progress of one stage that moves a known number of bytes:
///
///     load   ############------------  133.1 MiB of 256.6 MiB      while it runs, on a terminal's stderr only
///     load   ########################  272 tensors in 0.11 s       at the end, on stdout; without the bar in a pipe
///
/// Not thread-safe: io/reader.h calls its callback serialised.
class Progress {
 public:
  /// @param label  the stage, e.g. "load"
  /// @param total  bytes that make 100 %
  Progress(Console console, const std::string& label, std::uint64_t total);

  /// Takes an unfinished bar off the terminal, so that a diagnostic begins on an empty line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` bytes are finished so far. Draws only when the bar changes.
  void update(std::uint64_t done);

  /// Ends the stage with its result, e.g. "272 tensors, 256.6 MiB on 2 ranks in 0.11 s".
  void finish(std::string_view summary);

 private:
  void erase();

  Console console_;
  std::string label_;
  std::uint64_t total_;
  std::string drawn_{}; ///< the line on the terminal now
};

} // namespace tieshard::cli

// tieshard/cli/console.h
//
// Where a verb writes, and whether a person at a terminal reads it.
//
// Flow:   every verb, report, table, progress -> [this]
// Source: no-color.org: a NO_COLOR that is not empty turns colours off.

#pragma once

#include <ostream>
#include <string>
#include <string_view>

namespace tieshard::cli {

/// How a piece of text is shown on a terminal that has colours.
enum class Tone { kPlain, kStrong, kFaint, kError, kWarning, kNote, kGood };

/// One output stream and what is known of its reader.
struct Stream {
  std::ostream& text;
  bool terminal = false; ///< a person reads along: a progress bar makes sense
  bool colour = false;
  int width = 80; ///< columns of the terminal

  /// `words` in the escape codes of `tone`; unchanged on a stream without colours.
  std::string paint(Tone tone, std::string_view words) const;
};

/// Results go to `out`; diagnostics and progress go to `err`.
struct Console {
  Stream out;
  Stream err;
};

/// `text` with control characters spelled out ("\\x1b"), so that a name in a file cannot command the terminal. Line
/// breaks are kept.
std::string printable(std::string_view text);

/// The process's stdout and stderr. Colours need a terminal, a TERM other than "dumb" and no NO_COLOR.
Console standard_console();

} // namespace tieshard::cli

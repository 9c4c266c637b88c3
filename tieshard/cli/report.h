// tieshard/cli/report.h
//
// Turns whatever a verb throws into text on stderr and an exit status. Both programs end through here.
//
// Flow: main, cli/runtime/main -> [this] -> console

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tieshard/cli/console.h"
#include "tieshard/core/base/error.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace tieshard::cli {

/// What a verb does once its flags are parsed; returns the exit status.
using Verb = std::function<int(const Console&)>;

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitAnswerIsNo = 1; ///< of check, diff and the demo
inline constexpr int kExitInput = 2;
inline constexpr int kExitUsage = 3;
inline constexpr int kExitPeer = 4;
inline constexpr int kExitBug = 70;

/// The exit status that says who can act: 2 input, 3 usage, 4 peer, 70 bug.
int exit_status(const Error& error);

/// "error", "warning" or "note".
std::string_view word(Level level);

/// `diagnostic` as lines that begin with its level: "error  <what> [<code>]", the parts indented below.
void print_diagnostic(const Stream& stream, const Diagnostic& diagnostic);

/// Each of `findings`, in order.
void print_findings(const Stream& stream, const std::vector<Diagnostic>& findings);

/// Runs `verb`; prints what it throws on `console.err` and gives the exit status of that. Output that cannot be written
/// (a full disk behind stdout) is an error too. Never throws.
int run_verb(const std::function<int()>& verb, const Console& console);
int run_verb(const std::function<int()>& verb);

/// Parses the command line and runs the verb that it chose. Prints help or the version where asked (status 0). A flag
/// that cannot be used is the error bad-flag (status 2); so is a line without a verb. Flags of a --config file are put
/// in before (config_file.h).
///
/// @param chosen  filled by the callbacks of `app`'s subcommands
int run_command_line(CLI::App& app, int argc, const char* const* argv, const Verb& chosen, const Console& console);

} // namespace tieshard::cli

#include "tieshard/cli/report.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <sstream>
#include <system_error>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "tieshard/cli/config_file.h"
#include "tieshard/cli/table.h"

namespace tieshard::cli {
namespace {

Tone tone(Level level) {
  switch (level) {
    case Level::kError:
      return Tone::kError;
    case Level::kWarning:
      return Tone::kWarning;
    case Level::kNote:
      return Tone::kNote;
  }
  return Tone::kError;
}

// A part of several lines stays in its column; on a terminal a long one is broken at blanks, so that it does too.
std::string indented(const std::string& text, std::size_t columns, const Stream& stream) {
  const auto width = static_cast<std::size_t>(std::max(stream.width, 0));
  const std::string margin = "\n" + std::string(columns, ' ');
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    result += result.empty() ? "" : margin;
    std::size_t used = columns;
    std::istringstream words(line);
    for (std::string next; std::getline(words, next, ' ');) {
      const std::size_t needed = display_width(next) + 1;
      if (stream.terminal && used > columns && used + needed > width) {
        result += margin;
        used = columns;
      }
      result += concat(used > columns ? " " : "", next);
      used += needed;
    }
  }
  return result;
}

int report(const Console& console, const Diagnostic& diagnostic, int status) {
  console.out.text.flush();
  print_diagnostic(console.err, diagnostic);
  return status;
}

Diagnostic unexpected(std::string_view message) {
  return {.code = Code::kBug,
          .what = "tieshard met an exception that it does not know",
          .why = std::string(message.substr(0, message.find('\n'))), // without a library's stack trace
          .fix = "please report this with the command line that led here"};
}

Diagnostic out_of_memory() {
  return {.code = Code::kOutOfMemory,
          .what = "memory could not be allocated",
          .why = "an allocation on the host was refused",
          .fix = "use more ranks, a smaller batch, or a machine with more memory"};
}

// The name of the deepest subcommand that was reached, as the user typed it.
std::string command_words(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name() : concat(app.get_name(), " ", chosen.front()->get_name());
}

// A flag's own check (flags.h) says "--flag: expected ..., got ...".
Diagnostic bad_value(const std::string& words, const std::string& message) {
  const std::size_t colon = message.find(": ");
  const std::string flag = message.substr(0, colon);
  return {.code = Code::kBadFlag,
          .what = "a command line flag has a value that cannot be used",
          .where = flag,
          .why = colon == std::string::npos ? message : message.substr(colon + 2),
          .fix = concat("give ", flag, " such a value; `", words, " --help` explains it")};
}

Diagnostic bad_flag(const CLI::App& app, const CLI::ParseError& error) {
  const std::string words = command_words(app);
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    return bad_value(words, error.what());
  }
  return {.code = Code::kBadFlag,
          .what = "the command line cannot be used",
          .where = words,
          .why = error.what(),
          .fix = concat("see `", words, " --help`")};
}

} // namespace

std::string_view word(Level level) {
  switch (level) {
    case Level::kError:
      return "error";
    case Level::kWarning:
      return "warning";
    case Level::kNote:
      return "note";
  }
  return "error";
}

int exit_status(const Error& error) {
  std::error_code ignored;
  if (error.diagnostic().code == Code::kFileUnreadable &&
      !std::filesystem::is_directory(error.diagnostic().where, ignored)) { // that is no file of the name, as for doctor
    return kExitPeer;
  }
  if (dynamic_cast<const InputError*>(&error) != nullptr) {
    return kExitInput;
  }
  if (dynamic_cast<const UsageError*>(&error) != nullptr) {
    return kExitUsage;
  }
  if (dynamic_cast<const PeerError*>(&error) != nullptr) {
    return kExitPeer;
  }
  return kExitBug;
}

void print_diagnostic(const Stream& stream, const Diagnostic& diagnostic) {
  const std::string_view level = word(diagnostic.level);
  std::string text = concat(stream.paint(tone(diagnostic.level), level),
                            "  ",
                            diagnostic.what,
                            " ",
                            stream.paint(Tone::kFaint, concat("[", id(diagnostic.code), "]")),
                            "\n");
  const auto add = [&](std::string_view label, const std::string& part) {
    if (!part.empty()) {
      text += concat("         ", stream.paint(Tone::kFaint, label), indented(printable(part), 16, stream), "\n");
    }
  };
  add("where: ", diagnostic.where);
  add("why:   ", diagnostic.why);
  add("fix:   ", diagnostic.fix);
  stream.text << text << std::flush;
}

void print_findings(const Stream& stream, const std::vector<Diagnostic>& findings) {
  for (const Diagnostic& finding : findings) {
    print_diagnostic(stream, finding);
  }
}

int run_verb(const std::function<int()>& verb, const Console& console) {
  try {
    const int status = verb();
    console.out.text.flush();
    if (!console.out.text.good()) {
      return report(console,
                    {.code = Code::kIoFailed,
                     .what = "the output could not be written",
                     .where = "stdout",
                     .fix = "free space where the output goes, then run again"},
                    kExitPeer);
    }
    return status;
  } catch (const Error& error) {
    return report(console, error.diagnostic(), exit_status(error));
  } catch (const std::bad_alloc&) {
    return report(console, out_of_memory(), kExitPeer);
  } catch (const std::exception& error) {
    return report(console, unexpected(error.what()), kExitBug);
  } catch (...) {
    return report(console, unexpected("it is no std::exception"), kExitBug);
  }
}

int run_verb(const std::function<int()>& verb) {
  return run_verb(verb, standard_console());
}

int run_command_line(CLI::App& app, int argc, const char* const* argv, const Verb& chosen, const Console& console) {
  const auto parse_and_run = [&]() -> int {
    try {
      std::vector<std::string> line = with_config_file(app, {argv + (argc > 0 ? 1 : 0), argv + argc});
      std::ranges::reverse(line); // as CLI11 wants it
      app.parse(std::move(line));
    } catch (const CLI::CallForVersion& version) {
      console.out.text << version.what() << "\n";
      return kExitSuccess;
    } catch (const CLI::Success&) {
      console.out.text << app.help();
      return kExitSuccess;
    } catch (const CLI::ParseError& error) {
      return report(console, bad_flag(app, error), kExitInput);
    }
    if (!chosen) {
      console.err.text << app.help();
      return kExitInput;
    }
    return chosen(console);
  };
  return run_verb(parse_and_run, console);
}

} // namespace tieshard::cli

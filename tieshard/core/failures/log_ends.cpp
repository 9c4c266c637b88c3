#include "tieshard/core/failures/log_ends.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace tieshard {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// "exitcode: -9", "exitcode  : -9", "return code = -9", "exit code 137".
bool ends_with_kill(std::string_view text) {
  for (const std::string_view word : {"exitcode", "exit code", "return code", "exit status"}) {
    std::size_t at = text.find(word);
    if (at == std::string_view::npos) {
      continue;
    }
    at = std::min(text.find_first_not_of(" :=", at + word.size()), text.size());
    for (const std::string_view code : {"-9", "137"}) {
      const std::size_t next = at + code.size();
      if (text.substr(at).starts_with(code) &&
          (next >= text.size() || std::isdigit(static_cast<unsigned char>(text[next])) == 0)) {
        return true;
      }
    }
  }
  return false;
}

} // namespace

LogEnd end_of(std::string_view text) {
  constexpr std::array<std::string_view, 8> kKilled = {"oom-kill",
                                                       "oom_kill",
                                                       "OOMKilled",
                                                       "Killed process",
                                                       "out-of-memory handler",
                                                       "Signal 9 (SIGKILL)",
                                                       "Signals.SIGKILL",
                                                       " Killed  "};
  if (text == "Killed" || ends_with_kill(text) ||
      std::ranges::any_of(kKilled, [&](std::string_view part) { return has(text, part); })) {
    return LogEnd::kKilled;
  }
  const bool timed_out = has(text, "Watchdog caught collective operation timeout") ||
                         (has(text, "WorkNCCL") && has(text, "before timing out"));
  return timed_out ? LogEnd::kTimedOut : LogEnd::kNone;
}

} // namespace tieshard

#include "tieshard/cli/console.h"

#include <cstdlib>
#include <iostream>

#include <sys/ioctl.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

std::string_view escape_code(Tone tone) {
  switch (tone) {
    case Tone::kPlain:
      return "";
    case Tone::kStrong:
      return "\x1b[1m";
    case Tone::kFaint:
      return "\x1b[2m";
    case Tone::kError:
      return "\x1b[1;31m";
    case Tone::kWarning:
      return "\x1b[33m";
    case Tone::kNote:
      return "\x1b[36m";
    case Tone::kGood:
      return "\x1b[32m";
  }
  return "";
}

bool colours_wanted() {
  const char* refused = std::getenv("NO_COLOR");
  if (refused != nullptr && *refused != '\0') {
    return false;
  }
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) != "dumb";
}

Stream stream_of(std::ostream& text, int descriptor) {
  Stream stream{.text = text};
  stream.terminal = ::isatty(descriptor) == 1;
  stream.colour = stream.terminal && colours_wanted();
  winsize size{};
  if (stream.terminal && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    stream.width = size.ws_col;
  }
  return stream;
}

} // namespace

std::string Stream::paint(Tone tone, std::string_view words) const {
  const std::string_view code = escape_code(tone);
  if (!colour || code.empty() || words.empty()) {
    return std::string(words);
  }
  return concat(code, words, "\x1b[0m");
}

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c != '\n' && (byte < 0x20 || byte == 0x7F)) {
      result += concat("\\x", kDigits[byte >> 4U], kDigits[byte & 15U]);
    } else {
      result += c;
    }
  }
  return result;
}

Console standard_console() {
  return {.out = stream_of(std::cout, STDOUT_FILENO), .err = stream_of(std::cerr, STDERR_FILENO)};
}

} // namespace tieshard::cli

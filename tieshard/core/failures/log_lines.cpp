#include "tieshard/core/failures/log_lines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <streambuf>
#include <utility>

namespace tieshard {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string without_escapes(std::string_view raw) {
  if (std::ranges::all_of(raw, [](unsigned char c) { return c >= 0x20; })) {
    return std::string(raw);
  }
  std::string text;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const char c = raw[i];
    if (c == '\x1B' && i + 1 < raw.size() && raw[i + 1] == '[') {
      i += 2;
      while (i < raw.size() && (raw[i] < '@' || raw[i] > '~')) {
        ++i;
      }
    } else if (c == '\r') { // what follows is written over it
      text.clear();
    } else if (c == '\t' || static_cast<unsigned char>(c) >= 0x20) {
      text += c;
    }
  }
  return text;
}

/// Digits at `at`; -1 where there are none, and `at` stays.
int number_at(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  int number = 0;
  for (; at < text.size() && is_digit(text[at]) && at - begin < 6; ++at) {
    number = number * 10 + (text[at] - '0');
  }
  return at == begin ? -1 : number;
}

/// "[rank0]:", "[default0]:", "[trainer0]:": a word and a number. @return the bytes that it takes; 0: there is none
std::size_t role_of(std::string_view text, int& rank) {
  std::size_t at = 1;
  while (at < text.size() && (std::isalpha(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_')) {
    ++at;
  }
  const int number = at > 1 ? number_at(text, at) : -1;
  if (number < 0 || !text.substr(at).starts_with("]:")) {
    return 0;
  }
  rank = number;
  return at + 2;
}

/// "[1,0]<stderr>:". @return the bytes that it takes; 0: there is none
std::size_t job_of(std::string_view text, int& rank) {
  std::size_t at = 1;
  const int job = number_at(text, at);
  if (job < 0 || at >= text.size() || text[at] != ',') {
    return 0;
  }
  const int number = number_at(text, ++at);
  const std::size_t end = text.find(">:", at);
  if (number < 0 || !text.substr(at).starts_with("]<std") || end == std::string_view::npos) {
    return 0;
  }
  rank = number;
  return end + 2;
}

/// A launcher's prefix; "0: " alone only where no other was before. @return the bytes that it takes; 0: there is none
std::size_t prefix_of(std::string_view text, int& rank) {
  if (text.starts_with("[")) {
    const std::size_t role = role_of(text, rank);
    return role > 0 ? role : job_of(text, rank);
  }
  std::size_t at = 0;
  const int number = rank < 0 ? number_at(text, at) : -1;
  if (number < 0 || !text.substr(at).starts_with(": ")) {
    return 0;
  }
  rank = number;
  return at + 2;
}

/// "2026-11-29 10:11:12,345 " and "2026-11-29T10:11:12.345Z ", with or without brackets.
std::size_t time_stamp_of(std::string_view text) {
  std::size_t at = text.starts_with("[") ? 1 : 0;
  const auto has = [&](std::string_view form) {
    if (text.size() < at + form.size()) {
      return false;
    }
    for (std::size_t i = 0; i < form.size(); ++i) {
      if (form[i] == '9' ? !is_digit(text[at + i]) : form[i] != '?' && text[at + i] != form[i]) {
        return false;
      }
    }
    return true;
  };
  if (!has("9999-99-99?99:99:99")) {
    return 0;
  }
  at += 19;
  while (at < text.size() &&
         (is_digit(text[at]) || text[at] == ',' || text[at] == '.' || text[at] == 'Z' || text[at] == ']')) {
    ++at;
  }
  return at < text.size() && text[at] == ' ' ? at + 1 : at;
}

} // namespace

void clean_log_line(std::string_view raw, LogLine& line) {
  constexpr int kMostPrefixes = 8;
  line.plain = without_escapes(raw);
  line.rank = -1;
  std::string_view text = line.plain;
  for (int turn = 0; turn < kMostPrefixes; ++turn) {
    const std::size_t before = text.size();
    text.remove_prefix(time_stamp_of(text));
    const std::size_t prefix = prefix_of(text, line.rank);
    text.remove_prefix(prefix);
    const bool one_space = text.starts_with(" ") && !text.starts_with("  "); // a frame's own indentation is two
    if (prefix > 0 && (one_space || text.starts_with("   "))) {
      text.remove_prefix(1);
    }
    if (text.size() == before) {
      break;
    }
  }
  line.text = std::string(text);
}

std::string_view binary_kind(std::string_view raw) {
  using namespace std::string_view_literals;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kKinds = {{{"\x1F\x8B"sv, "gzip"sv},
                                                                                    {"\x28\xB5\x2F\xFD"sv, "zstd"sv},
                                                                                    {"\xFD\x37zXZ"sv, "xz"sv},
                                                                                    {"BZh9"sv, "bzip2"sv},
                                                                                    {"PK\x03\x04"sv, "a zip archive"sv},
                                                                                    {"\xFF\xFE"sv, "UTF-16 text"sv},
                                                                                    {"\xFE\xFF"sv, "UTF-16 text"sv}}};
  for (const auto& [begin, kind] : kKinds) {
    if (raw.starts_with(begin)) {
      return kind;
    }
  }
  const std::size_t text = std::min(raw.find_first_not_of('\0'), raw.size());
  return raw.substr(text).find('\0') == std::string_view::npos ? ""sv : "bytes with zeros"sv;
}

bool next_log_line(std::istream& in, LogLine& line) {
  std::string& raw = line.raw;
  raw.clear();
  std::streambuf& bytes = *in.rdbuf();
  bool any = false;
  for (int c = bytes.sbumpc(); c != std::streambuf::traits_type::eof(); c = bytes.sbumpc()) {
    any = true;
    if (c == '\n') {
      break;
    }
    if (raw.size() < kLongestLogLine) {
      raw += static_cast<char>(c);
    }
  }
  if (!any) {
    return false;
  }
  if (raw.ends_with('\r')) { // of CRLF
    raw.pop_back();
  }
  ++line.number;
  clean_log_line(raw, line);
  return true;
}

} // namespace tieshard

#include "tieshard/core/failures/log_lines.h"

#include <algorithm>
#include <cctype>

namespace tieshard {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string without_escapes(std::string_view raw) {
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

/// "[rank0]:", "[default0]:", "[1,0]<stderr>:", "0: ". @return the bytes that it takes; 0: there is none
std::size_t prefix_of(std::string_view text, int& rank) {
  if (text.starts_with("[")) {
    std::size_t at = 1;
    for (const std::string_view word : {"rank", "default"}) {
      if (text.substr(1).starts_with(word)) {
        at += word.size();
        rank = number_at(text, at);
        return rank >= 0 && text.substr(at).starts_with("]:") ? at + 2 : 0;
      }
    }
    const int job = number_at(text, at);
    if (job < 0 || at >= text.size() || text[at] != ',') {
      return 0;
    }
    rank = number_at(text, ++at);
    const std::size_t end = text.find(">:", at);
    return rank >= 0 && text.substr(at).starts_with("]<std") && end != std::string_view::npos ? end + 2 : 0;
  }
  std::size_t at = 0;
  const int number = number_at(text, at);
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
  const std::string plain = without_escapes(raw);
  std::string_view text = plain;
  int rank = -1;
  text.remove_prefix(time_stamp_of(text));
  if (const std::size_t prefix = prefix_of(text, rank); prefix > 0) {
    text.remove_prefix(prefix);
    if (text.starts_with(" ") && !text.starts_with("  ")) { // "[rank0]: text"; a frame's own indentation is two
      text.remove_prefix(1);
    } else if (text.starts_with("   ")) {
      text.remove_prefix(1);
    }
    line.rank = rank;
    text.remove_prefix(time_stamp_of(text));
  } else {
    line.rank = -1;
  }
  line.text = std::string(text);
}

bool next_log_line(std::istream& in, LogLine& line) {
  std::string raw;
  char c = 0;
  bool any = false;
  while (in.get(c)) {
    any = true;
    if (c == '\n') {
      break;
    }
    if (raw.size() < kLongestLogLine) {
      raw += c;
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

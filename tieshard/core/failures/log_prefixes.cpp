#include "tieshard/core/failures/log_prefixes.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace tieshard {
namespace {

constexpr std::size_t kMostPrefixes = 256;
constexpr std::size_t kLongestPrefix = 256;

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Bytes of a time or date that begins at `at`: "12:00:00,123", "2026-09-01T12:00:00Z", "34.5"; 0: there is none.
std::size_t time_at(std::string_view text, std::size_t at) {
  if (at >= text.size() || !is_digit(text[at]) || (at > 0 && is_digit(text[at - 1]))) {
    return 0;
  }
  constexpr std::string_view kOthers = ":.,-TZ";
  std::size_t end = at;
  while (end < text.size() && (is_digit(text[end]) || kOthers.find(text[end]) != std::string_view::npos)) {
    ++end;
  }
  while (!is_digit(text[end - 1]) && text[end - 1] != 'Z') {
    --end;
  }
  const std::string_view run = text.substr(at, end - at);
  const auto count = [&](char c) { return std::ranges::count(run, c); };
  return count(':') > 0 || count('-') > 1 || (count('.') == 1 && count(',') == 0) ? run.size() : 0;
}

/// Bytes of `line` that `prefix` stands for, whatever the time; nothing: it begins otherwise.
std::optional<std::size_t> covered(std::string_view prefix, std::string_view line) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < prefix.size();) {
    if (const std::size_t time = time_at(prefix, i); time > 0) {
      const std::size_t other = time_at(line, at);
      if (other == 0) {
        return std::nullopt;
      }
      i += time;
      at += other;
    } else if (at == line.size() && prefix.find_first_not_of(' ', i) == std::string_view::npos) {
      return at; // an empty line, whose trailing spaces were cut
    } else if (at == line.size() || line[at] != prefix[i]) {
      return std::nullopt;
    } else {
      ++i;
      ++at;
    }
  }
  return at;
}

/// Digits at `at`; -1: there are none.
int number_at(std::string_view text, std::size_t& at) {
  int number = -1;
  for (std::size_t digits = 0; at < text.size() && is_digit(text[at]) && digits < 6; ++at, ++digits) {
    number = std::max(number, 0) * 10 + (text[at] - '0');
  }
  return number;
}

/// Of "node001: [rank3]: " and " 3:" 3; -1: it names none.
int rank_in(std::string_view prefix) {
  const std::size_t word = prefix.find("rank");
  if (word == std::string_view::npos) {
    std::size_t at = std::min(prefix.find_first_not_of(' '), prefix.size());
    const int number = number_at(prefix, at);
    return prefix.substr(at) == ":" || prefix.substr(at) == ": " ? number : -1;
  }
  std::size_t at = word + 4;
  if (at < prefix.size() && std::string_view(" =:").find(prefix[at]) != std::string_view::npos) {
    ++at;
  }
  return number_at(prefix, at);
}

/// Ranks have at most six digits; learned prefixes are counted from here.
constexpr std::uint64_t kRanks = 1 << 20;

std::uint64_t stream_of(int rank) {
  return static_cast<std::uint64_t>(rank + 1);
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t") == std::string_view::npos;
}

/// `prefix` with its times taken out: the same for all lines of one writer.
std::string key_of(std::string_view prefix) {
  std::string key = "prefix ";
  for (std::size_t i = 0; i < prefix.size();) {
    const std::size_t time = time_at(prefix, i);
    key += time > 0 ? '\0' : prefix[i];
    i += std::max<std::size_t>(time, 1);
  }
  return key;
}

} // namespace

std::uint64_t LogPrefixes::strip(LogLine& line) {
  const Known* longest = nullptr;
  std::size_t bytes = 0;
  for (const Known& known : known_) {
    const std::optional<std::size_t> part = covered(known.prefix, line.plain);
    if (part && (longest == nullptr || *part >= bytes)) {
      longest = &known;
      bytes = *part;
    }
  }
  if (longest != nullptr) {
    line.text = line.plain.substr(bytes);
    line.rank = std::max(line.rank, longest->rank);
    return longest->id;
  }
  if (!is_blank(line.plain)) { // an indented traceback ends with its indentation
    std::erase_if(known_, [](const Known& known) { return is_blank(known.prefix); });
  }
  return stream_of(line.rank);
}

std::uint64_t LogPrefixes::learn(const LogLine& line) {
  constexpr std::string_view kGroup = "+ Exception Group ";
  const std::size_t end = line.plain.find(kTraceback);
  if (end == std::string::npos || end > kLongestPrefix) {
    return stream_of(line.rank);
  }
  std::string prefix = line.plain.substr(0, end);
  if (prefix.ends_with(kGroup)) { // its own lines begin with a bar
    prefix.replace(prefix.size() - kGroup.size(), kGroup.size(), "| ");
  }
  std::string key = key_of(prefix);
  std::erase_if(known_, [&](const Known& known) { return known.key == key; });
  const int rank = rank_in(prefix);
  known_.push_back({.prefix = std::move(prefix), .key = std::move(key), .rank = rank, .id = kRanks + ++learned_});
  if (known_.size() > kMostPrefixes) {
    known_.pop_front();
  }
  return known_.back().id;
}

} // namespace tieshard

#include "tieshard/core/failures/log_prefixes.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "tieshard/core/base/error.h"

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

/// Of "node001: [rank3]: " 3; -1: it names none.
int rank_in(std::string_view prefix) {
  const std::size_t word = prefix.find("rank");
  std::size_t at = word == std::string_view::npos ? prefix.size() : word + 4;
  if (at < prefix.size() && std::string_view(" =:").find(prefix[at]) != std::string_view::npos) {
    ++at;
  }
  int rank = -1;
  for (std::size_t digits = 0; at < prefix.size() && is_digit(prefix[at]) && digits < 6; ++at, ++digits) {
    rank = std::max(rank, 0) * 10 + (prefix[at] - '0');
  }
  return rank;
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

std::string LogPrefixes::strip(LogLine& line) {
  const std::string* longest = nullptr;
  std::size_t bytes = 0;
  for (const std::string& prefix : prefixes_) {
    const std::optional<std::size_t> part = covered(prefix, line.plain);
    if (part && (longest == nullptr || *part >= bytes)) {
      longest = &prefix;
      bytes = *part;
    }
  }
  if (longest != nullptr) {
    line.text = line.plain.substr(bytes);
    line.rank = std::max(line.rank, rank_in(*longest));
    return key_of(*longest);
  }
  if (!is_blank(line.plain)) { // an indented traceback ends with its indentation
    std::erase_if(prefixes_, is_blank);
  }
  return concat("rank ", line.rank);
}

std::string LogPrefixes::learn(const LogLine& line) {
  constexpr std::string_view kGroup = "+ Exception Group ";
  const std::size_t end = line.plain.find(kTraceback);
  if (end == std::string::npos || end > kLongestPrefix) {
    return concat("rank ", line.rank);
  }
  std::string prefix = line.plain.substr(0, end);
  if (prefix.ends_with(kGroup)) { // its own lines begin with a bar
    prefix.replace(prefix.size() - kGroup.size(), kGroup.size(), "| ");
  }
  std::string key = key_of(prefix);
  std::erase_if(prefixes_, [&](const std::string& known) { return key_of(known) == key; });
  prefixes_.push_back(std::move(prefix));
  if (prefixes_.size() > kMostPrefixes) {
    prefixes_.pop_front();
  }
  return key;
}

} // namespace tieshard

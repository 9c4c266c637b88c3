#include "tieshard/core/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

template <typename Value>
std::string formatted(const char* format, Value value) {
  std::array<char, 64> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), format, value);
  return {buffer.data(), static_cast<std::size_t>(length)};
}

/// `value` with one decimal and the unit in which it is below `step` after rounding, so that 1023.97 KiB is 1.0 MiB.
template <std::size_t kUnits>
std::string scaled(double value, double step, const std::array<std::string_view, kUnits>& units) {
  std::size_t unit = 0;
  value /= step;
  while (unit + 1 < units.size() && std::round(value * 10) / 10 >= step) {
    value /= step;
    ++unit;
  }
  return concat(formatted("%.1f", value), " ", units[unit]);
}

/// Bytes of a unit in any letter case; 0 when it is none.
std::uint64_t unit_bytes(std::string_view unit) {
  constexpr std::string_view kPrefixes = "kmgt";
  std::string lower;
  for (const char c : unit) {
    lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  if (lower.empty() || lower == "b") {
    return 1;
  }
  const std::size_t power = kPrefixes.find(lower.front());
  const bool binary = lower.substr(1) == "ib";
  if (power == std::string_view::npos || (!binary && lower.substr(1) != "b")) {
    return 0;
  }
  std::uint64_t bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) {
    bytes *= binary ? 1024 : 1000;
  }
  return bytes;
}

std::string two_digits(std::int64_t value) {
  return concat(value < 10 ? "0" : "", value);
}

} // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return bytes < 1024 ? concat(bytes, " B") : scaled(static_cast<double>(bytes), 1024, kUnits);
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const std::size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, number_end);
  std::string_view unit = text.substr(number_end);
  unit.remove_prefix(unit.size() > 1 && unit.front() == ' ' ? 1 : 0);
  double value = 0;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), value, std::chars_format::fixed);
  const std::uint64_t scale = unit_bytes(unit);
  const bool fraction_of_a_byte = scale == 1 && number.find('.') != std::string_view::npos;
  if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() || scale == 0 || fraction_of_a_byte) {
    return std::nullopt;
  }
  const double bytes = value * static_cast<double>(scale);
  if (!(bytes < 9.2e18)) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(std::llround(bytes));
}

std::string format_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first_digit = count < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first_digit + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string format_parameters(std::int64_t count) {
  constexpr std::array<std::string_view, 4> kUnits = {"K", "M", "B", "T"};
  return count < 1000 ? std::to_string(count) : scaled(static_cast<double>(count), 1000, kUnits);
}

std::string format_seconds(double seconds) {
  if (seconds < 0.9995) {
    return formatted("%.0f ms", std::max(seconds, 0.0) * 1000);
  }
  if (seconds < 59.995) {
    return formatted("%.2f s", seconds);
  }
  const std::int64_t whole = std::llround(seconds);
  if (whole < 3600) {
    return concat(whole / 60, ":", two_digits(whole % 60), " min");
  }
  return concat(whole / 3600, ":", two_digits(whole / 60 % 60), ":", two_digits(whole % 60), " h");
}

std::string format_name(std::string_view name) {
  constexpr std::size_t kMaxBytes = 256;
  const bool cut = name.size() > kMaxBytes;
  std::size_t shown = cut ? kMaxBytes : name.size();
  // A cut must not fall inside a UTF-8 sequence, whose bytes after the first are 10xxxxxx.
  while (cut && shown > 0 && (static_cast<unsigned char>(name[shown]) & 0xC0U) == 0x80U) {
    --shown;
  }
  std::string text;
  for (const char c : name.substr(0, shown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      text += formatted("\\u%04x", static_cast<unsigned>(byte));
    } else {
      text += c;
    }
  }
  return cut ? concat(text, "... (", format_count(static_cast<std::int64_t>(name.size())), " bytes)") : text;
}

std::string format_names(const std::vector<std::string>& names) {
  constexpr std::size_t kMaxNames = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    text += concat(i == 0 ? "" : ", ", format_name(names[i]));
  }
  return names.size() > kMaxNames ? concat(text, " and ", names.size() - kMaxNames, " more") : text;
}

} // namespace tieshard

#include "tieshard/cli/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <CLI/App.hpp>

namespace tieshard::cli {
namespace {

InputError bad_value(const std::string& flag, const std::string& value, const std::string& form) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has a value that cannot be used",
                     .where = flag,
                     .why = concat("expected ", form, ", got ", value),
                     .fix = concat("write ", flag, " ", form)});
}

InputError given_twice(const std::string& flag, const std::string& key) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag contradicts itself",
                     .where = concat(flag, ", ", key),
                     .why = "expected one value for each name, got two",
                     .fix = "leave one of them out"});
}

// Splits "KEY=VALUE" at the last '='; parameter names have none.
std::map<std::string, std::string> pairs(const std::vector<std::string>& values,
                                         const std::string& flag,
                                         const std::string& form) {
  std::map<std::string, std::string> result;
  for (const std::string& value : values) {
    const std::size_t equals = value.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == value.size()) {
      throw bad_value(flag, value, form);
    }
    if (!result.emplace(value.substr(0, equals), value.substr(equals + 1)).second) {
      throw given_twice(flag, value.substr(0, equals));
    }
  }
  return result;
}

template <typename Number>
std::optional<Number> parsed(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end ? std::optional(value) : std::nullopt;
}

CLI::Validator expecting(const std::string& expected, const std::function<bool(const std::string&)>& fits) {
  return CLI::Validator(
      [=](std::string& text) { return fits(text) ? "" : concat("expected ", expected, ", got ", text); }, "");
}

bool has_leading_zero(const std::string& text) {
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  return text.size() > first + 1 && text[first] == '0';
}

} // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return expecting(concat("a whole number from ", least, " to ", most), [=](const std::string& text) {
    const auto value = parsed<std::int64_t>(text);
    return value && *value >= least && *value <= most && !has_leading_zero(text);
  });
}

CLI::Validator finite_number_from(double least) {
  return expecting(concat("a finite number of at least ", least), [=](const std::string& text) {
    const auto value = parsed<double>(text);
    return value && std::isfinite(*value) && *value >= least;
  });
}

CLI::Validator number_above(double bound) {
  return expecting(concat("a number above ", bound), [=](const std::string& text) {
    const auto value = parsed<double>(text);
    return value && *value > bound;
  });
}

CLI::Validator number_from_to_below(double least, double bound) {
  return expecting(concat("a number from ", least, " to below ", bound), [=](const std::string& text) {
    const auto value = parsed<double>(text);
    return value && *value >= least && *value < bound;
  });
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) {
    list += concat(list.empty() ? "" : word == words.back() ? " or " : ", ", word);
  }
  return expecting(list, [=](const std::string& text) { return std::ranges::find(words, text) != words.end(); });
}

CLI::Validator any_text(const std::string& expected) {
  return CLI::Validator(
      [=](std::string& text) { return text.empty() ? concat("expected ", expected, ", got nothing") : ""; }, "");
}

void add_repeated(CLI::App& verb,
                  const std::string& flag,
                  std::vector<std::string>& values,
                  const std::string& value_name,
                  const std::string& help) {
  verb.add_option(flag, values, help)->type_name(value_name)->allow_extra_args(false);
}

std::map<std::string, std::string> declared_ties(const std::vector<std::string>& values) {
  return pairs(values, "--tie", "ALIAS=CANONICAL");
}

std::map<std::string, int> declared_dims(const std::vector<std::string>& values) {
  std::map<std::string, int> dims;
  for (const auto& [parameter, text] : pairs(values, "--dim", "NAME=D")) {
    int dim = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, dim);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      throw bad_value("--dim", concat(parameter, "=", text), "NAME=D with a whole number D");
    }
    dims.emplace(parameter, dim);
  }
  return dims;
}

} // namespace tieshard::cli

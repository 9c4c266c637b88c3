#include "tieshard/core/plan/init_rule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw InputError({.code = Code::kBadFlag,
                    .what = "a command line flag has a value that cannot be used",
                    .where = "--init",
                    .why = concat("expected a rule such as normal(0.02), got ", text, why),
                    .fix = "write normal(std), normal(mean, std), uniform(low, high), constant(x), zeros or ones"});
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  return text;
}

/// A finite decimal number and nothing else.
std::optional<double> number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

/// The numbers of "name(x)" or "name(x, y)"; none when the text is not of that form.
std::vector<double> arguments(std::string_view text, std::string_view name) {
  if (!text.starts_with(name) || !text.substr(name.size()).starts_with('(') || !text.ends_with(')')) {
    return {};
  }
  std::string_view list = text.substr(name.size() + 1, text.size() - name.size() - 2);
  std::vector<double> values;
  for (bool more = true; more;) {
    const std::size_t comma = list.find(',');
    more = comma != std::string_view::npos;
    const std::optional<double> value = number(trimmed(list.substr(0, comma)));
    if (!value) {
      return {};
    }
    values.push_back(*value);
    list.remove_prefix(more ? comma + 1 : list.size());
  }
  return values;
}

} // namespace

InitRule InitRule::parse(std::string_view text) {
  if (text == "zeros") {
    return {};
  }
  if (text == "ones") {
    return {.a = 1.0};
  }
  if (const std::vector<double> values = arguments(text, "constant"); values.size() == 1) {
    return {.a = values[0]};
  }
  if (const std::vector<double> values = arguments(text, "normal"); values.size() == 1 || values.size() == 2) {
    if (values.back() < 0.0) {
      refuse(text, ": a standard deviation is not negative");
    }
    return {.kind = Kind::kNormal, .a = values.size() == 2 ? values[0] : 0.0, .b = values.back()};
  }
  if (const std::vector<double> values = arguments(text, "uniform"); values.size() == 2) {
    if (values[1] < values[0] || !std::isfinite(values[1] - values[0])) {
      refuse(text, ": the higher bound comes second");
    }
    return {.kind = Kind::kUniform, .a = values[0], .b = values[1]};
  }
  refuse(text, "");
}

double InitRule::bound() const {
  constexpr double kFarthest = 7.0; // standard deviations: Box-Muller on 32-bit words ends at sqrt(-2 ln 2^-33) = 6.77
  switch (kind) {
    case Kind::kConstant:
      return std::abs(a);
    case Kind::kNormal:
      return std::abs(a) + kFarthest * b;
    case Kind::kUniform:
      return std::max(std::abs(a), std::abs(b));
  }
  return 0.0;
}

std::string InitRule::to_string() const {
  switch (kind) {
    case Kind::kConstant:
      return concat("constant(", a, ")");
    case Kind::kNormal:
      return concat("normal(", a, ", ", b, ")");
    case Kind::kUniform:
      return concat("uniform(", a, ", ", b, ")");
  }
  return "unknown";
}

} // namespace tieshard

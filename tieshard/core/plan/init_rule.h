// tieshard/core/plan/init_rule.h
//
// A value that the caller asks for where the files have none: the only way to a weight that no file holds.
//
// Flow: cli (--init NAME=RULE) -> [this] -> weight_source.h, io

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tieshard {

/// The distribution of an initialised parameter.
struct InitRule {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double a = 0.0; ///< kConstant: the value; kNormal: mean; kUniform: low
  double b = 0.0; ///< kNormal: standard deviation, >= 0; kUniform: high, >= a
  std::uint64_t seed = 0;

  /// From "normal(0.02)" (standard deviation), "normal(mean, std)", "uniform(low, high)", "constant(x)", "zeros",
  /// "ones". @throws InputError bad-flag
  static InitRule parse(std::string_view text);

  /// No value of the rule is larger than this, in size.
  double bound() const;

  std::string to_string() const;
};

/// A rule for one parameter, by name or alias.
struct NamedInit {
  std::string fqn;
  InitRule rule;
};

} // namespace tieshard

// tieshard/core/families/prefix_rule.h
//
// Finds what stands in stored names beside the model's own, or is left out of them, by comparing both.
//
// Flow: name_mapping.cpp -> [this] -> model_names.h

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/families/model_names.h"

namespace tieshard {

/// How names change: a leading `from` becomes `to`, or, when `anywhere` is set, `from` is taken out wherever it stands
/// between dots behind the front. Both end in a dot, or are empty.
struct PrefixRule {
  std::string from;
  std::string to;
  bool anywhere = false;

  /// The changed name; nothing where the rule does not apply.
  std::optional<std::string> apply(std::string_view name) const;

  bool operator==(const PrefixRule&) const = default;
};

/// A name that the model does not know, with the shape of its tensor.
struct UnknownName {
  std::string_view name;
  const Shape* shape = nullptr;
};

/// The rule that gives most of the `missing` parameters a value from `unknown`; nothing when none gives at least
/// `least` of them one, or the shapes say that others are meant.
///
/// @param missing  indices into the model's table
std::optional<PrefixRule> find_prefix_rule(const std::vector<UnknownName>& unknown,
                                           const std::vector<std::size_t>& missing,
                                           std::size_t least,
                                           const ModelNames& model);

} // namespace tieshard

// tieshard/core/optim/param_group_rules.h
//
// Which parameters get another learning rate or weight decay than the rest, by patterns on their names.
//
// Flow:   cli flags -> [this] -> runtime/optim/param_groups
// Source: the no_decay lists of transformers' training scripts; nanoGPT's rule that what has fewer than two dims is not
//         decayed.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

/// What one group has of its own.
struct ParamGroupRule {
  std::string text; ///< as it was written, for messages
  /// Each is looked for anywhere in a fqn; `*` in it stands for any characters. None for no_decay: every parameter of
  /// fewer than two dims, which norms and biases are.
  std::vector<std::string> patterns;
  std::optional<double> lr{};           ///< instead of the optimizer's; the schedule's factor is taken of it too
  std::optional<double> weight_decay{}; ///< instead of the optimizer's
};

/// `no_decay`, or PATTERN[,PATTERN...]:SETTING[,SETTING...] with lr=X and weight_decay=X, X a finite number of at least
/// 0.
/// @throws InputError bad-flag
ParamGroupRule parse_param_group_rule(const std::string& text);

/// A parameter that rules choose from.
struct GroupCandidate {
  std::vector<std::string> names; ///< the canonical one first, then its aliases; a pattern may match any
  std::size_t dims = 0;
};

bool matches(std::string_view pattern, std::string_view fqn);

/// For each candidate the rule that takes it, rules.size() for none. The first rule that matches a parameter has it.
/// @throws InputError unknown-parameter when a pattern matches no candidate, or only such as earlier rules took
std::vector<std::size_t> assign_param_groups(const std::vector<ParamGroupRule>& rules,
                                             const std::vector<GroupCandidate>& candidates);

} // namespace tieshard

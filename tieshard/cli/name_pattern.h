// tieshard/cli/name_pattern.h
//
// Folds "model.layers.0.mlp.up_proj.weight", "model.layers.1...." into one line "model.layers.0-29.mlp.up_proj.weight".
//
// Flow: inspect, plan -> [this]

#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tieshard::cli {

/// Names that differ only in their numbers.
struct NameGroup {
  std::string pattern;              ///< with the numbers that occur, e.g. "model.layers.0-29.norm.weight"
  std::vector<std::size_t> members; ///< indices into the names, in their order
};

/// Groups `names`, in order of first appearance.
///
/// @param kind  what else must be equal within a group, e.g. dtype and shape as text
std::vector<NameGroup> fold_names(std::span<const std::string> names,
                                  const std::function<std::string(std::size_t)>& kind);

} // namespace tieshard::cli

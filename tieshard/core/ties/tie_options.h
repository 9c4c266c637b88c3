// tieshard/core/ties/tie_options.h
//
// What a caller says about ties beside config and files: the flags --tie, --untie and --on-tie-conflict.
//
// Flow: cli, runtime/train -> [this] -> tie_registry.h

#pragma once

#include <map>
#include <string>
#include <vector>

namespace tieshard {

/// What becomes of two names that are declared tied and stored with different values.
enum class OnTieConflict {
  kUntie,     ///< two weights, with a warning
  kError,     ///< refused
  kCanonical, ///< tied; the canonical name's bytes are read
  kAlias,     ///< tied; the alias's bytes are read
};

struct TieOptions {
  std::map<std::string, std::string> explicit_ties{}; ///< alias -> canonical (`--tie`)
  std::vector<std::string> untied{};                  ///< names that get a storage of their own (`--untie`)
  OnTieConflict on_conflict = OnTieConflict::kUntie;
};

} // namespace tieshard

// tieshard/core/ties/tie_rules.h
//
// What declares two names tied, before the stored bytes are asked: the module, config.json, the family, file metadata,
// the caller.
//
// Flow:   tie_registry.cpp -> [this] -> families/family.h, checkpoint
// Source: transformers `_tied_weights_keys`; safetensors `save_model` metadata (`metadata[dropped] = kept`).

#pragma once

#include <map>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/ties/tie_group.h"

namespace tieshard {

/// A pair of names that somebody holds to be one parameter. Both are indices into the ParameterTable, `first` <
/// `second`.
struct DeclaredTie {
  std::size_t first = 0;
  std::size_t second = 0;
  TieReason reason;
};

/// Names that declared ties join, directly or through others.
struct DeclaredGroup {
  std::vector<std::size_t> members; ///< indices into the ParameterTable, rising; at least two
  std::vector<DeclaredTie> ties;    ///< all that join them
};

/// Pairs of names with one identity.
std::vector<DeclaredTie> module_ties(const ParameterTable& table);

/// The ties that `checkpoint`, its family and `explicit_ties` (alias -> canonical) declare between names of `table`.
///
/// @param findings  receives tie-flag-default (note), tie-flag-nested and tie-from-metadata (warnings)
/// @throws InputError tie-unknown-name when an explicit tie names no parameter, tie-cycle
std::vector<DeclaredTie> checkpoint_ties(const Checkpoint& checkpoint,
                                         const ParameterTable& table,
                                         const std::map<std::string, std::string>& explicit_ties,
                                         std::vector<Diagnostic>& findings);

/// Joins pairs that share a name. In the order of their first members.
std::vector<DeclaredGroup> join_ties(std::vector<DeclaredTie> ties, std::size_t table_size);

} // namespace tieshard

// tieshard/core/ties/tie_checks.h
//
// Whether a declared tie can be held: one shape, and equal bytes where several of its names are stored.
//
// Flow: tie_registry.cpp -> [this] -> stored_copies.h

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/ties/tie_group.h"
#include "tieshard/core/ties/tie_options.h"

namespace tieshard {

/// @param where        what to name in the error: both names, with their files where the shapes are stored ones
/// @param second_name  the name whose shape is `second`
/// @throws InputError tie-shape-mismatch, naming both shapes, and `second_name` when it looks transposed
void require_one_shape(const std::string& where,
                       const Shape& first,
                       const std::string& second_name,
                       const Shape& second);

/// Compares the stored copies of a declared group. Adds kEqualBytes to the aliases whose bytes are equal, and sets
/// `group.source` where copies differ and the caller chose one.
///
/// @param findings  receives tie-copies-equal, tie-dtype-differs, tie-conflict
/// @return whether the group is tied; false: its two names are two weights
/// @throws InputError tie-shape-mismatch; tie-conflict where copies differ and the names cannot be held apart (the
///         module or the caller ties them, or the caller wants an error); tie-source-ambiguous, naming the whole group,
///         where one of three or more names would have to be guessed
bool hold_against_files(const Checkpoint& checkpoint,
                        TieGroup& group,
                        OnTieConflict on_conflict,
                        std::vector<Diagnostic>& findings);

} // namespace tieshard

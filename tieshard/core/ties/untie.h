// tieshard/core/ties/untie.h
//
// Takes names that the caller wants apart (`--untie`) out of the ties that are declared for them.
//
// Flow: tie_registry.cpp -> [this] -> tie_rules.h, tie_options.h

#pragma once

#include <map>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/ties/tie_options.h"
#include "tieshard/core/ties/tie_rules.h"

namespace tieshard {

/// Member of a group that lost a name -> the first name of --untie that it lost, or that it is.
using UndoneTies = std::map<std::string, std::string, std::less<>>;

/// Removes `options.untied` from the members of `groups`; what is left of a group stays tied, also where the name that
/// joined it is gone. A group of one name is dropped. An untied name needs a stored value of its own.
///
/// @param findings  receives untied (note), one for each name
/// @throws InputError tie-unknown-name when a name is no parameter; untied when the caller ties the name as well, or
///         when it is one tensor of the module with another name, which nobody can undo from outside
UndoneTies untie(const ParameterTable& table,
                 const TieOptions& options,
                 std::vector<DeclaredGroup>& groups,
                 std::vector<Diagnostic>& findings);

} // namespace tieshard

// tieshard/core/ties/explicit_ties.h
//
// What a caller's map alias -> canonical says once its chains are followed.
//
// Flow: tie_rules.cpp, tie_registry.cpp -> [this] -> families/parameter_table.h

#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

/// The end of each alias's chain: the first name on its way that has no entry of its own. Points into the map. Linear
/// in the map, but for its look-ups.
///
/// @param table  the parameters; every name of the map must be in it
/// @throws InputError tie-unknown-name, tie-cycle (also for a name that is tied to itself)
std::map<std::string_view, std::string_view> ends_of_chains(const std::map<std::string, std::string>& explicit_ties,
                                                            const ParameterTable& table);

/// @throws InputError tie-unknown-name when `asked` is no parameter; `where` says what asked for it
void require_parameter(bool is_parameter, const std::string& asked, const std::string& where);

} // namespace tieshard

// tieshard/core/optim/frozen_parameters.h
//
// Which parameters a run leaves as they are, by patterns on their names.
//
// Flow: cli flags -> [this] -> runtime/train/parallelize

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/optim/param_group_rules.h"

namespace tieshard {

/// For each candidate whether a pattern (as ParamGroupRule has them) matches one of its names: a tied weight is frozen
/// under each of them.
/// @throws InputError unknown-parameter when a pattern matches no candidate, bad-flag when they take all
std::vector<bool> frozen_parameters(const std::vector<std::string>& patterns,
                                    const std::vector<GroupCandidate>& candidates);

} // namespace tieshard

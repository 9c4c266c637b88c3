// tieshard/core/report/tie_drawing.h
//
// Tie groups drawn: the weight, and each name that leads to it.
//
// Flow: model_report -> [this] -> html

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/ties/tie_group.h"

namespace tieshard {

/// A figure for each of the first twelve groups, and a table of all with the evidence.
std::string html_ties(const std::vector<TieGroup>& groups);

} // namespace tieshard

// tieshard/core/base/comma_list.h
//
// Lists on the command line.
//
// Flow: core/optim/param_group_rules, cli -> [this]

#pragma once

#include <string>
#include <vector>

namespace tieshard {

/// The parts between the commas of `text`, empty ones too: at least one.
std::vector<std::string> split_at_commas(const std::string& text);

} // namespace tieshard

// tieshard/cli/closest_names.h
//
// What a person may have meant by a name that does not exist.
//
// Flow: tensor_values, plan -> [this]

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tieshard::cli {

/// At most `count` of `names`, the closest to `asked` first: names that contain it, then by the number of single
/// character edits. Equal ones in their order.
std::vector<std::string> closest_names(const std::string& asked, std::span<const std::string> names, std::size_t count);

} // namespace tieshard::cli

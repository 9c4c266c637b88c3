// tieshard/core/adapters/transposed.h
//
// A matrix of an adapter the other way round: the halves of a tied adapter are each other's transposes.
//
// Flow: adapter_file, merge -> [this]

#pragma once

#include <cstdint>
#include <vector>

namespace tieshard {

/// @param values  [rows, columns], row-major
/// @returns [columns, rows], row-major
std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows, std::int64_t columns);

} // namespace tieshard

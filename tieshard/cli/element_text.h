// tieshard/cli/element_text.h
//
// One element of a tensor as text.
//
// Flow: tensor_values -> [this]

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tieshard/core/base/dtype.h"

namespace tieshard::cli {

/// How a float is written: with the fewest digits that give the same element back, or with its exact value as a double.
enum class FloatText { kShortest, kExact };

/// Elements of little-endian `bytes` as text, at most `count`: floats as `floats` asks, integers in decimal, booleans
/// as true and false, everything else as one hexadecimal word for each element (for each byte where elements are packed
/// below one byte).
std::vector<std::string> element_texts(std::span<const std::byte> bytes,
                                       DType dtype,
                                       std::size_t count,
                                       FloatText floats);

/// True where element_texts gives numbers or booleans.
bool shown_as_number(DType dtype);

} // namespace tieshard::cli

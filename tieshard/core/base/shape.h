// tieshard/core/base/shape.h
//
// Tensor shapes and sizes, computed so that a hostile file cannot make them wrap.
//
// Flow: every room -> [this]

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/dtype.h"

namespace tieshard {

/// Sizes of a tensor's dimensions, in elements; empty for a 0-dim (scalar) tensor.
using Shape = std::vector<std::int64_t>;

/// "[49152, 576]"; "[]" for a scalar.
std::string to_string(const Shape& shape);

/// Product of the sizes; nothing when a size is negative or the product of the sizes other than 0 does not fit in 63
/// bits: a tensor without elements still has strides, and those must not wrap either.
std::optional<std::int64_t> checked_numel(const Shape& shape);

/// Product of the sizes of a shape that has been checked already (1 for a scalar).
std::int64_t numel(const Shape& shape);

/// Bytes of a whole tensor; nothing when the product overflows or packed elements do not fill whole bytes.
std::optional<std::uint64_t> checked_bytes(const Shape& shape, DType dtype);

} // namespace tieshard

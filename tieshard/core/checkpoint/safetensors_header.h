// tieshard/core/checkpoint/safetensors_header.h
//
// The JSON header of a safetensors file, checked rule by rule before anything in it is trusted.
//
// Flow:   safetensors_file -> [this]
// Source: the section "Format" of the safetensors README. Stricter than safetensors 0.8 where that accepts what
//         its own text forbids: duplicate keys, white space before the opening brace.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/shape.h"

namespace tieshard {

/// One tensor as the header describes it. `begin` and `end` are bytes, counted from the end of the header.
struct TensorEntry {
  std::string name;
  DType dtype;
  Shape shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;            ///< in the order of their bytes in the file
  std::map<std::string, std::string> metadata; ///< the strings of __metadata__; empty when absent or null
  std::uint64_t data_start = 0;                ///< byte of the file at which the tensors' data begins
};

/// Parses and validates the JSON text of a header.
///
/// @param text        the header's bytes (without the 8-byte length), trailing spaces included
/// @param data_bytes  size of the file after the header, in bytes
/// @param where       the file, for errors
/// @throws InputError header-not-json (text does not begin with '{' or is not JSON), header-not-utf8, duplicate-key,
///         metadata-not-string, bad-entry (a field is missing or of the wrong type), unknown-dtype, bad-shape
///         (negative or not an integer), size-overflow, size-mismatch (shape x dtype is not the range),
///         offsets-reversed, overlap, hole, truncated (a range ends after the file), trailing-bytes
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, const std::string& where);

} // namespace tieshard

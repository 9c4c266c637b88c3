// tieshard/core/state/sharding_info.h
//
// DCP_SHARDING_INFO: where in their whole tensors the blocks of one file begin.
//
// Flow:   sharded_files -> [this]; block_layout writes what this reads
// Source: PyTorch DCP's Hugging Face layout: {"name": {"saved_offsets": [24576, 0]}}. "shape", the whole tensor's, is
//         this project's; DCP ignores fields that it does not know.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tieshard/core/base/shape.h"

namespace tieshard {

inline constexpr const char* kShardingInfoKey = "DCP_SHARDING_INFO"; ///< in __metadata__
inline constexpr const char* kSaveIdKey = "tieshard_id";             ///< in __metadata__
inline constexpr const char* kSavedOffsets = "saved_offsets";
inline constexpr const char* kWholeShape = "shape";

/// Where a block lies.
struct BlockPlace {
  Shape offsets;              ///< of its first element, each from 0 to 2^53
  std::optional<Shape> whole; ///< of the whole tensor, where it is stated
};

/// By tensor name. Fields and names that are not known are read past.
/// @param where  the file, for errors
/// @throws InputError bad-entry (not JSON, a key twice, no saved_offsets, a number that is none from 0 to 2^53, more
///         than 64 dimensions)
std::unordered_map<std::string, BlockPlace> parse_sharding_info(std::string_view text, const std::string& where);

} // namespace tieshard

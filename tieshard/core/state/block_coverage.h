// tieshard/core/state/block_coverage.h
//
// The proof that the blocks of a tensor are all of it, each element once: no two overlap, and their sizes sum up.
//
// Flow: sharded_files -> [this] -> box

#pragma once

#include <functional>
#include <string>

#include "tieshard/core/state/sharded_files.h"

namespace tieshard {

/// Pre: every block is non-empty and lies in tensor.shape
/// @param file_name  of a file's index, for errors
/// @throws InputError block-overlap (names the two files), block-missing (names the first missing element)
void require_covered(const ShardedTensor& tensor,
                     const std::string& where,
                     const std::function<std::string(std::size_t)>& file_name);

} // namespace tieshard

// tieshard/core/checkpoint/shard_check.h
//
// Do the shards of a checkpoint hold what their index says, no less and no more?
//
// Flow: checkpoint -> [this] -> safetensors_file

#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/core/checkpoint/safetensors_index.h"

namespace tieshard {

/// Opens the files of index.files(), in that order.
/// @throws InputError shard-missing (names all that are missing), and everything that SafetensorsFile::open throws
std::vector<SafetensorsFile> open_shards(const std::filesystem::path& directory,
                                         const SafetensorsIndex& index,
                                         const std::string& where,
                                         const SafetensorsLimits& limits);

/// Compares the opened `shards` with `index`; a file that by its name (model-00002-of-00002.safetensors) is a shard of
/// the same save is looked at too, also when the index does not mention it.
///
/// @return warnings tensor-in-two-shards, total-size
/// @throws InputError tensor-not-in-shard, tensor-not-in-index
std::vector<Diagnostic> check_shards(const std::filesystem::path& directory,
                                     const SafetensorsIndex& index,
                                     const std::string& where,
                                     const std::vector<SafetensorsFile>& shards,
                                     const SafetensorsLimits& limits);

} // namespace tieshard

// tieshard/core/checkpoint/stored_weights.h
//
// The weights files that a directory as save_pretrained leaves it means, and what they hold. No config.json is asked
// for.
//
// Flow:   checkpoint, core/state/sharded_files -> [this] -> shard_check
// Source: transformers: model.safetensors wins over the index; the shards are those that the index names.

#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/safetensors_file.h"

namespace tieshard {

inline constexpr const char* kSingleWeights = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

/// A tensor of the checkpoint: where its bytes lie.
struct StoredTensor {
  std::string name; ///< the model's name for it: the file's, unless renamed() has given another
  DType dtype;
  Shape shape;
  std::size_t file = 0;     ///< index into Checkpoint::files()
  std::uint64_t offset = 0; ///< first byte in that file
  std::uint64_t bytes = 0;
  std::string stored_name{}; ///< the name in the file
};

struct StoredWeights {
  std::vector<SafetensorsFile> files;
  std::vector<StoredTensor> tensors;  ///< sorted by name, each name once
  std::vector<Diagnostic> findings{}; ///< stale-index, tensor-in-two-shards, total-size
};

/// Whether something of that name is there; also a symbolic link that leads nowhere: opening it then says so.
bool is_there(const std::filesystem::path& path);

/// @throws InputError directory-not-found
void require_directory(const std::filesystem::path& directory);

/// Opens model.safetensors, or the shards of the index.
/// Pre: one of the two is there
/// @throws InputError index-malformed, path-escape, shard-missing, tensor-not-in-shard, tensor-not-in-index, and what
///         SafetensorsFile::open throws
StoredWeights open_stored_weights(const std::filesystem::path& directory, const SafetensorsLimits& limits);

/// Opens one weights file by itself, whatever lies beside it. @throws InputError what SafetensorsFile::open throws
StoredWeights open_weights_file(const std::filesystem::path& file, const SafetensorsLimits& limits);

} // namespace tieshard

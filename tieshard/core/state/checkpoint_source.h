// tieshard/core/state/checkpoint_source.h
//
// What a verb is given to read: a checkpoint with its manifest, or sharded files alone.
//
// Flow: reshard, export_checkpoint -> [this] -> find_checkpoint

#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/manifest.h"

namespace tieshard {

struct CheckpointSource {
  std::filesystem::path directory{};
  std::optional<Manifest> manifest{};
  std::vector<Diagnostic> findings{}; ///< as FoundCheckpoint
};

/// `in` itself where it holds *.safetensors and no manifest; else as find_checkpoint. With `verify` a manifest is
/// needed: only that has hashes.
/// @throws InputError as find_checkpoint
CheckpointSource find_source(const std::filesystem::path& in, bool verify);

} // namespace tieshard

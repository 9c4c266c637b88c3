// tieshard/core/state/checkpoint_source.h
//
// What a verb is given to read: a checkpoint with its manifest, or sharded files alone.
//
// Flow: reshard, export_checkpoint -> [this] -> find_checkpoint

#pragma once

#include <filesystem>
#include <optional>
#include <system_error>
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

/// `out` lies neither in the checkpoint nor among those of its run, where a job that goes on would find it as the
/// newest.
/// @throws InputError bad-flag
void require_outside(const CheckpointSource& source, const std::filesystem::path& out);

/// use(find_source(in, verify)). Where it fails because the run that saves has removed the checkpoint in the meantime,
/// again with the one that is the newest then, a few times.
/// @throws InputError as find_source, and what `use` throws
template <typename Use>
auto use_source(const std::filesystem::path& in, bool verify, const Use& use) {
  constexpr int kMostTries = 20;
  for (int tries = 1;; ++tries) {
    const CheckpointSource source = find_source(in, verify);
    try {
      return use(source);
    } catch (const Error&) {
      std::error_code ignored; // what cannot be asked about is not gone
      const bool gone = source.directory != in && !std::filesystem::exists(source.directory, ignored) && !ignored;
      if (!gone || tries == kMostTries) {
        throw;
      }
    }
  }
}

} // namespace tieshard

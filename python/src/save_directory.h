// python/src/save_directory.h
//
// Rank 0's part in a save: the directory is locked, staged, filled up and published.
//
// Flow:   python/tieshard/saving.py -> [this] -> core/state (checkpoint_store, manifest, directory_lock)
// Source: runtime/state/checkpoint_writer.h, which does the same for a module of LibTorch's.

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/state/checkpoint_store.h"
#include "tieshard/core/state/directory_lock.h"

namespace tieshard::python {

/// What stands in a checkpoint beside its tensors.
struct BesideShards {
  std::string manifest{};                     ///< JSON; `files` has the shard files only
  std::string trainer{};                      ///< JSON
  std::map<std::string, std::string> texts{}; ///< by file name: config.json and the like
  std::filesystem::path source{}; ///< a model directory whose tokenizer and similar files are copied; or empty
};

class SaveDirectory {
 public:
  /// Locks `directory` (RUN/checkpoints), which is made if need be, until release().
  /// @throws InputError directory-in-use; PeerError io-failed
  SaveDirectory(const std::filesystem::path& directory, std::int64_t step);

  /// @param bytes  that all ranks will write. @throws as CheckpointStore::stage
  std::filesystem::path stage(std::uint64_t bytes) const;

  /// Writes what stands beside the shard files, then the manifest, publishes, and prunes where `keep` is above 0. What
  /// was set aside is returned. @throws InputError manifest-malformed; PeerError disk-full, io-failed
  std::vector<std::filesystem::path> publish(const BesideShards& beside, std::int64_t keep) const;

  /// Removes what is staged. Never throws.
  void discard() const noexcept;

  /// Gives the lock back.
  void release() noexcept;

 private:
  std::optional<DirectoryLock> lock_;
  CheckpointStore store_;
  std::int64_t step_;
};

} // namespace tieshard::python

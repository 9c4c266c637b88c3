// tieshard/core/state/checkpoint_store.h
//
// The checkpoints of one run on disk: RUN/checkpoints/step-000000200/, and the file `latest` that names the newest.
//
// Flow:   runtime/train -> [this] -> base/staged_directory.h
// Source: POSIX rename(2), renameat2(2) (RENAME_EXCHANGE), flock(2).
//
// A checkpoint is staged beside its name, synced, renamed, and then `latest` is replaced by rename. So at any moment,
// and after any crash, every directory that has a checkpoint's name is complete. What a killed job left staged is
// removed by the next save.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/manifest.h"

namespace tieshard {

/// How closely a checkpoint is looked at.
enum class Verify {
  kSizes,  ///< manifest, and each file's presence and size
  kHashes, ///< and each file's bytes
};

/// Reads and checks `directory`'s manifest.
/// @throws InputError no-checkpoint (no manifest.json), manifest-malformed, checkpoint-incomplete (names each bad file)
Manifest open_manifest(const std::filesystem::path& directory, Verify verify);

struct FoundCheckpoint {
  std::filesystem::path directory;
  Manifest manifest;
  std::vector<Diagnostic> findings; ///< checkpoint-incomplete, as warnings: newer ones that were passed over
};

/// The checkpoint to go on from. `given` is one checkpoint, which has to be complete; or a run, or its checkpoints/: of
/// these the newest that is complete.
/// @throws InputError no-checkpoint (nothing complete; each one's reason is given), and for a checkpoint as
/// open_manifest
FoundCheckpoint find_checkpoint(const std::filesystem::path& given, Verify verify);

/// Nobody else writes there while this lives. The kernel gives the lock back when the process ends, however it ends.
class DirectoryLock {
 public:
  /// Makes `directory` if need be, and the file .lock in it. @throws InputError directory-in-use; PeerError io-failed
  static DirectoryLock take(const std::filesystem::path& directory);

  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

class CheckpointStore {
 public:
  /// @param directory  RUN/checkpoints; need not be there yet
  explicit CheckpointStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// "step-000000200"
  static std::string name_of(std::int64_t step);

  /// Where the checkpoint of `step` is, or will be.
  std::filesystem::path path_of(std::int64_t step) const;

  /// Where it is staged until it is published.
  std::filesystem::path staging_of(std::int64_t step) const;

  /// Steps that have a directory, newest first; complete unless something damaged them since.
  std::vector<std::int64_t> steps() const;

  /// The name in `latest`; nothing when there is none.
  std::optional<std::string> latest() const;

  /// An empty staging directory for `step`, after what earlier jobs left staged or half removed is gone.
  /// @param bytes  that will be written there by all ranks
  /// @throws PeerError disk-full (before anything is written; expected and free bytes), io-failed
  std::filesystem::path stage(std::int64_t step, std::uint64_t bytes) const;

  /// Syncs the staging directory, gives it its name and makes `latest` name it. A directory of that name (damaged,
  /// since a run went on from an earlier step) is exchanged in one step and removed. Pre: its files are synced. @throws
  /// PeerError io-failed, disk-full
  void publish(std::int64_t step) const;

  /// Removes what is staged for `step`. Never throws: it is called after a failure.
  void discard(std::int64_t step) const noexcept;

  /// Removes all but the newest `keep` and `latest`'s own. @throws PeerError io-failed
  void prune(std::int64_t keep) const;

  const std::filesystem::path& directory() const noexcept {
    return directory_;
  }

 private:
  std::filesystem::path directory_;
};

/// @throws PeerError disk-full when the file system of `directory` has less free than `bytes`, before anything is
/// written
void require_free_space(const std::filesystem::path& directory, std::uint64_t bytes);

} // namespace tieshard

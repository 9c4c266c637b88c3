// tieshard/core/state/checkpoint_store.h
//
// The checkpoints of one run on disk: RUN/checkpoints/step-000000200/, and the file `latest` that names the newest.
//
// Flow:   runtime/train -> [this] -> base/staged_directory.h
// Source: POSIX rename(2), renameat2(2) (RENAME_EXCHANGE).
//
// A checkpoint is staged beside its name, synced, renamed, and then `latest` is replaced by rename. One that goes is
// renamed to a hidden name before it is removed. So at any moment, and after any crash, every directory that has a
// checkpoint's name is complete. What a killed job left under hidden names is removed by the next save.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tieshard {

/// One job at a time may stage, publish, discard and prune (directory_lock.h), and one save at a time; anybody may
/// look.
class CheckpointStore {
 public:
  /// @param directory  RUN/checkpoints; need not be there yet
  explicit CheckpointStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// "step-000000200"
  static std::string name_of(std::int64_t step);

  /// The step of a checkpoint's directory; nothing for any other name.
  static std::optional<std::int64_t> step_of(std::string_view name);

  /// Where the checkpoint of `step` is, or will be.
  std::filesystem::path path_of(std::int64_t step) const;

  /// Where it is staged until it is published.
  std::filesystem::path staging_of(std::int64_t step) const;

  /// Steps that have a directory (a symbolic link is none), newest first; complete unless something damaged them since.
  std::vector<std::int64_t> steps() const;

  /// The name in `latest`; nothing when there is none.
  std::optional<std::string> latest() const;

  /// An empty staging directory for `step`, after what earlier jobs left staged or half removed is gone.
  /// @param bytes  that will be written there by all ranks
  /// @throws PeerError disk-full (before anything is written; expected and free bytes), io-failed
  std::filesystem::path stage(std::int64_t step, std::uint64_t bytes) const;

  /// Syncs the staging directory, gives it its name and makes `latest` name it. A directory of that name (of a run that
  /// went on from an earlier step) is exchanged in one step and removed. Those of later steps are of a line that this
  /// run has left: they are set aside as "left-step-000000300", where nothing resumes from them or prunes them.
  /// Pre: its files are synced. Returns what was set aside, for a message.
  /// @throws PeerError io-failed, disk-full
  std::vector<std::filesystem::path> publish(std::int64_t step) const;

  /// Removes what is staged for `step`. Never throws: it is called after a failure.
  void discard(std::int64_t step) const noexcept;

  /// Removes all but the newest `keep` (at least one) and `latest`'s own. @throws PeerError io-failed
  void prune(std::int64_t keep) const;

  const std::filesystem::path& directory() const noexcept {
    return directory_;
  }

 private:
  std::filesystem::path directory_;
};

/// @throws PeerError disk-full when the file system that `directory` is or will be on has less free than `bytes`
/// @param remedy  added to the fix: "; or keep fewer checkpoints (--keep)"
void require_free_space(const std::filesystem::path& directory, std::uint64_t bytes, std::string_view remedy = {});

} // namespace tieshard

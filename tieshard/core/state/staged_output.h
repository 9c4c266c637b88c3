// tieshard/core/state/staged_output.h
//
// A directory that one job makes: staged under a hidden name that nobody else writes into, complete or absent.
//
// Flow: reshard, export_checkpoint -> [this] -> base/staged_directory.h, directory_lock

#pragma once

#include <filesystem>

#include "tieshard/core/state/directory_lock.h"

namespace tieshard {

class StagedOutput {
 public:
  /// What a killed job left staged is removed. The lock (.NAME.lock beside `directory`) is held until this is gone,
  /// over sync and rename. @param bytes  that will be written
  /// @throws InputError output-exists, directory-in-use; PeerError io-failed, disk-full (before anything is written)
  StagedOutput(const std::filesystem::path& directory, std::uint64_t bytes);

  /// Removes what is staged, unless it was published.
  ~StagedOutput();
  StagedOutput(const StagedOutput&) = delete;
  StagedOutput& operator=(const StagedOutput&) = delete;

  /// Where to write.
  const std::filesystem::path& path() const noexcept {
    return staging_;
  }

  /// Gives it its name. Pre: its files are synced. At most once. @throws InputError output-exists; PeerError io-failed
  void publish();

 private:
  std::filesystem::path directory_;
  std::filesystem::path staging_;
  DirectoryLock lock_;
  bool published_ = false;
};

} // namespace tieshard

// tieshard/core/state/directory_lock.h
//
// One writer a directory.
//
// Flow:   runtime/train, staged_output -> [this] -> the kernel
// Source: flock(2).

#pragma once

#include <filesystem>

namespace tieshard {

/// Nobody else writes there while this lives. The kernel gives the lock back when the process ends, however it ends; a
/// process that was forked meanwhile and lives on holds it too.
class DirectoryLock {
 public:
  /// Makes `directory` if need be, and the file .lock in it, which stays and says who holds or held the lock.
  /// @throws InputError directory-in-use (which process of which host); PeerError io-failed, disk-full
  static DirectoryLock take(const std::filesystem::path& directory);

  /// The lock of a directory that is to appear by a rename, so that nothing of it may be inside: the hidden file
  /// .NAME.lock beside it, which is removed with the lock. Makes the directory above it if need be.
  /// @throws as take
  static DirectoryLock take_beside(const std::filesystem::path& directory);

  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
  std::filesystem::path removed_{}; ///< the file, where it goes with the lock
};

} // namespace tieshard

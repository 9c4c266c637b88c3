// tieshard/core/state/directory_lock.h
//
// One writer a directory.
//
// Flow:   runtime/train -> [this] -> the kernel
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

  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

} // namespace tieshard

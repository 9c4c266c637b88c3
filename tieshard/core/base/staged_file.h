// tieshard/core/base/staged_file.h
//
// A file that appears under its name only when all of it is durable.
//
// Flow:   checkpoint/safetensors_writer.h, every writer of a small file -> [this] -> file.h
// Source: POSIX rename(2): replaces in one step; fsync of file and directory makes both survive a crash.

#pragma once

#include <cstdint>
#include <filesystem>

#include "tieshard/core/base/file.h"

namespace tieshard {

/// Written under a temporary name beside its own; removed when it is destroyed unpublished.
class StagedFile {
 public:
  /// Reserves `bytes` of disk. @throws PeerError disk-full, io-failed
  static StagedFile create(const std::filesystem::path& path, std::uint64_t bytes);

  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile();

  const File& file() const noexcept {
    return file_;
  }

  /// Syncs, renames to the final name (over a file that has it) and syncs the directory. At most once.
  /// @throws PeerError io-failed, disk-full
  void publish();

 private:
  StagedFile(File file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}

  File file_;
  std::filesystem::path path_; ///< the final name
  bool staged_ = true;
};

} // namespace tieshard

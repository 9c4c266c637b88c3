// tieshard/core/base/file.h
//
// Files by descriptor: positioned reads and writes that either do all of it or throw, and whether a file is still what
// it was.
//
// Flow: checkpoint, io, runtime/state -> [this] -> the kernel

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tieshard {

/// Bytes of a file from `begin` up to but not including `end`.
struct FileExtent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator==(const FileExtent&, const FileExtent&) = default;
};

/// What tells a file from another one of its name, and from itself after a change.
struct FileIdentity {
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0; ///< since the epoch
  std::uint64_t inode = 0;
  std::uint64_t device = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// An open file. Movable; closes on destruction. Reads and writes at explicit offsets may come from several threads.
class File {
 public:
  /// @throws InputError file-not-found, file-unreadable (is a directory, no permission)
  static File open_for_reading(const std::filesystem::path& path);

  /// Creates or truncates `path` and reserves `bytes` of disk for it, so that a full disk shows now.
  /// @throws PeerError disk-full, io-failed
  static File create(const std::filesystem::path& path, std::uint64_t bytes);

  /// Opens an existing file for positioned writes (another rank created it). @throws PeerError io-failed
  static File open_for_writing(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  /// Fills `out` from byte `offset` on. @throws PeerError io-failed, also when the file ends too early
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;

  /// Tells the kernel that these bytes will be read soon, where they are not in memory yet. A hint: it cannot fail.
  void read_ahead(std::uint64_t offset, std::uint64_t bytes) const noexcept;

  /// Writes all of `data` at byte `offset`. @throws PeerError disk-full, io-failed
  void write_at(std::uint64_t offset, std::span<const std::byte> data) const;

  /// Sends these bytes on their way to the disk without waiting, so that sync() has less to do. A hint: it cannot fail.
  void start_write_back(std::uint64_t offset, std::uint64_t bytes) const noexcept;

  /// Makes what was written durable (fsync). @throws PeerError io-failed
  void sync() const;

  /// Size in bytes now.
  std::uint64_t size() const;

  /// The first run of bytes at or after `offset` that are stored; what lies between such runs is a hole of a sparse
  /// file and reads as zeros. Nothing when only a hole follows. Where a file system knows no holes, all is stored.
  std::optional<FileExtent> next_stored(std::uint64_t offset) const;

  /// As it was when it was opened for reading; all zero for a file that was opened to be written.
  const FileIdentity& identity() const noexcept {
    return identity_;
  }

  /// Compares the open file, and what its path names now, with identity().
  /// @throws PeerError file-changed (written, cut, replaced or removed since), io-failed
  void require_unchanged() const;

  const std::filesystem::path& path() const noexcept {
    return path_;
  }

  /// For mappings and advice; -1 after a move.
  int descriptor() const noexcept {
    return descriptor_;
  }

 private:
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::filesystem::path path_;
  FileIdentity identity_;
};

/// The whole of a small text file. @throws InputError file-not-found, file-unreadable, file-too-large
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes = 64 << 20);

/// Writes `text` to `path` by way of a temporary file in the same directory: complete or absent.
/// @throws PeerError disk-full, io-failed
void write_text_file(const std::filesystem::path& path, const std::string& text);

/// Names of the entries of a directory, sorted. @throws InputError file-unreadable
std::vector<std::string> list_directory(const std::filesystem::path& directory);

/// Makes the entries of a directory durable (fsync of the directory). @throws PeerError io-failed
void sync_directory(const std::filesystem::path& directory);

} // namespace tieshard

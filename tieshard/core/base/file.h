// tieshard/core/base/file.h
//
// Files by descriptor: positioned reads and writes that either do all of it or throw.
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

  /// Writes all of `data` at byte `offset`. @throws PeerError disk-full, io-failed
  void write_at(std::uint64_t offset, std::span<const std::byte> data) const;

  /// Makes what was written durable (fsync). @throws PeerError io-failed
  void sync() const;

  /// Size in bytes now.
  std::uint64_t size() const;

  /// The first run of bytes at or after `offset` that are stored; what lies between such runs is a hole of a sparse
  /// file and reads as zeros. Nothing when only a hole follows. Where a file system knows no holes, all is stored.
  std::optional<FileExtent> next_stored(std::uint64_t offset) const;

  const std::filesystem::path& path() const noexcept {
    return path_;
  }

 private:
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::filesystem::path path_;
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

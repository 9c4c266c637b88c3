// tieshard/core/state/hashed_file.h
//
// A file that is written from its first byte to its last, hashed on the way, and on its way to the disk before it ends.
//
// Flow: shard_file_writer, reshard, export -> [this] -> base/file.h, base/content_hash.h

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tieshard/core/base/content_hash.h"
#include "tieshard/core/base/file.h"

namespace tieshard {

/// A file of a checkpoint as its manifest keeps it.
struct FileRecord {
  std::string name; ///< relative to the checkpoint
  std::uint64_t bytes = 0;
  std::string xxh128; ///< 32 hexadecimal digits

  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

class HashedFile {
 public:
  /// Creates the file and takes its disk space. @throws PeerError disk-full, io-failed
  HashedFile(const std::filesystem::path& path, std::uint64_t bytes);

  /// @throws PeerError disk-full, io-failed
  void append(std::span<const std::byte> bytes);

  /// Makes it durable. Pre: as many bytes as announced were appended. @throws PeerError io-failed; InternalError bug
  FileRecord finish();

 private:
  File file_;
  ContentHash hash_;
  std::uint64_t announced_;
  std::uint64_t written_ = 0;
  std::uint64_t started_ = 0; ///< bytes whose way to the disk has begun
};

/// The record of a file that is there, by reading it. @throws InputError file-not-found; PeerError io-failed
FileRecord record_of(const std::filesystem::path& directory, const std::string& name);

} // namespace tieshard

// tieshard/core/state/checked_writer.h
//
// Positioned writes into a file that several ranks write together, each read back and compared a little later.
//
// Flow: runtime/state/export_writer -> [this] -> base/file.h, base/content_hash.h
//
// Note: [A few pages] When the kernel has sent a batch on its way, it is read back, through a descriptor of its own,
// and
//       its pages are given back. So a file of any size goes through the same few pages: fresh ones for the whole file
//       cost a virtual machine up to five times the time of the writes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tieshard/core/base/content_hash.h"
#include "tieshard/core/base/file.h"

namespace tieshard {

class CheckedWriter {
 public:
  static constexpr std::uint64_t kBatchBytes = 4 << 20; ///< at least so much is read back at once

  /// Pre: the file is there at its full size. @throws PeerError io-failed; InputError file-not-found
  explicit CheckedWriter(const std::filesystem::path& path);

  /// Writes `bytes` at `offset`. Nobody writes there again.
  /// @throws PeerError disk-full, io-failed; export-mismatch for what was written some batches before
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Reads back what has not been yet, and makes all durable. Call it once, last.
  /// @throws PeerError io-failed, export-mismatch
  void finish();

 private:
  /// Writes that are read back together.
  struct Batch {
    std::vector<FileExtent> extents;
    std::uint64_t bytes = 0;
    ContentHash hash;
  };

  void close_batch();
  void read_back(const Batch& batch);

  File file_;
  File reader_;
  Batch open_;
  std::deque<Batch> under_way_;
  std::vector<std::byte> buffer_;
};

} // namespace tieshard

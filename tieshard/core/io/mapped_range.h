// tieshard/core/io/mapped_range.h
//
// Bytes of a file as private, writable memory: pages of the page cache until they are written.
//
// Flow: base/file.h -> [this] -> local_shards (weights that are not copied), reader (brings their pages in)

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tieshard/core/base/file.h"
#include "tieshard/core/io/mapped_guard.h"

namespace tieshard {

/// The file never changes: the first write to a page copies it. Unmaps at its end. What cannot be read is zeros, and
/// require_intact() says so. Neither copied nor moved.
class MappedRange {
 public:
  /// Maps bytes [offset, offset + bytes) of `file`, bytes > 0; nothing is read yet.
  /// @returns null where the kernel refuses (a file system without mappings, too many of them, strict accounting)
  static std::unique_ptr<MappedRange> map(const File& file, std::uint64_t offset, std::uint64_t bytes);

  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  ~MappedRange();

  /// The byte at `offset`.
  std::byte* data() const noexcept {
    return data_;
  }

  /// Enters the pages of bytes [first, first + bytes) of the range into this process, without a fault for each.
  void populate(std::uint64_t first, std::uint64_t bytes) const;

  /// @throws PeerError file-changed when a page could not be read
  void require_intact() const {
    guard_.require_intact();
  }

 private:
  MappedRange(std::byte* pages, std::uint64_t page_bytes, std::byte* data, MappedGuard guard);

  std::byte* pages_;
  std::uint64_t pages_bytes_;
  std::byte* data_;
  MappedGuard guard_;
};

} // namespace tieshard

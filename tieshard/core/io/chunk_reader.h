// tieshard/core/io/chunk_reader.h
//
// Carries out one chunk after another for one thread: fetch, convert, look for NaN.
//
// Flow: reader -> [this] -> base/file.h, mapped_range.h, convert.h, finite.h

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tieshard/core/io/read_chunk.h"

namespace tieshard {

/// What one chunk came to.
struct ChunkOutcome {
  std::uint64_t asked = 0; ///< bytes from the file, copied
  /// Element of the slice, in memory order, that is NaN or infinite: the first one of the chunk.
  std::optional<std::uint64_t> not_finite{};
};

class ChunkReader {
 public:
  ChunkReader(const Checkpoint& checkpoint,
              std::span<const SliceRead> reads,
              std::span<const ReadTarget> targets,
              bool check_values)
      : checkpoint_(checkpoint), reads_(reads), targets_(targets), check_values_(check_values) {}

  /// @throws PeerError io-failed, file-changed
  ChunkOutcome read(const ReadChunk& chunk);

  /// Looks at all of a slice: for those whose pieces do not say it, once all are read (kDecode fills the target in no
  /// order). Nothing when values are not checked.
  std::optional<std::uint64_t> find_not_finite(std::size_t slice) const;

 private:
  std::uint64_t fetch(const ReadChunk& chunk);
  std::uint64_t read_rows(const ReadChunk& chunk);
  std::uint64_t read_block(const ReadChunk& chunk);
  void lay_rows(const ReadChunk& chunk, const std::byte* block, std::uint64_t stride);
  std::byte* place(const ReadChunk& chunk) const;
  void check(const ReadChunk& chunk, std::uint64_t first_byte, std::uint64_t bytes);
  std::byte* buffer(std::uint64_t bytes);

  const Checkpoint& checkpoint_;
  std::span<const SliceRead> reads_;
  std::span<const ReadTarget> targets_;
  bool check_values_;
  std::vector<std::byte> buffer_;
  std::optional<std::uint64_t> not_finite_;
};

} // namespace tieshard

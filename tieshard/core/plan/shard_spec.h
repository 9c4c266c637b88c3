// tieshard/core/plan/shard_spec.h
//
// Which part of a dimension a rank gets.
//
// Flow:   shard_plan -> [this]
// Source: torch.chunk, as DTensor's Shard placement uses it: equal ceil-sized chunks, the last smaller or empty.

#pragma once

#include <cstdint>
#include <vector>

namespace tieshard {

/// A run of indices of one dimension, in elements.
struct ChunkRange {
  std::int64_t offset = 0;
  std::int64_t size = 0; ///< may be 0

  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// The part of a dimension of `size` elements that chunk `index` of `count` gets. An empty chunk lies at the end.
/// Pre: size >= 0, 0 <= index < count.
ChunkRange chunk_range(std::int64_t size, std::int64_t count, std::int64_t index);

/// Neighbouring chunks of equal size: `count` of them from index `first` on. Chunk first + i begins at offset + i *
/// size.
struct ChunkRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
  std::int64_t size = 0;

  friend bool operator==(const ChunkRun&, const ChunkRun&) = default;
};

/// All chunks of a dimension, as at most three runs: full ones, a smaller one, empty ones. Costs the same for any
/// `count`. Pre: size >= 0, count >= 1.
std::vector<ChunkRun> chunk_runs(std::int64_t size, std::int64_t count);

} // namespace tieshard

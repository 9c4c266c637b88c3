#include "tieshard/core/plan/shard_spec.h"

#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard {
namespace {

/// torch.chunk as its documentation says it: pieces of ceil(size / count), the last one smaller; possibly fewer pieces.
std::vector<std::int64_t> chunk_sizes(std::int64_t size, std::int64_t count) {
  const std::int64_t piece = (size + count - 1) / count;
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = size; left > 0; left -= piece) {
    sizes.push_back(left < piece ? left : piece);
  }
  sizes.resize(static_cast<std::size_t>(count), 0); // the ranks after the last piece hold nothing
  return sizes;
}

TEST(ChunkRange, AgreesWithTorchChunkForEverySmallSize) {
  for (std::int64_t size = 0; size <= 40; ++size) {
    for (std::int64_t count = 1; count <= 12; ++count) {
      const auto expected = chunk_sizes(size, count);
      for (std::int64_t index = 0; index < count; ++index) {
        EXPECT_EQ(chunk_range(size, count, index).size, expected[static_cast<std::size_t>(index)])
            << size << " in " << count << ", " << index;
      }
    }
  }
}

TEST(ChunkRange, TilesTheDimensionWithoutHoleOrOverlap) {
  for (std::int64_t size = 0; size <= 40; ++size) {
    for (std::int64_t count = 1; count <= 12; ++count) {
      std::int64_t end = 0;
      for (std::int64_t index = 0; index < count; ++index) {
        const ChunkRange range = chunk_range(size, count, index);
        EXPECT_EQ(range.offset, end) << size << " in " << count << ", " << index;
        EXPECT_GE(range.size, 0);
        end = range.offset + range.size;
      }
      EXPECT_EQ(end, size);
    }
  }
}

TEST(ChunkRange, LeavesRanksEmptyAsTorchDoes) {
  // torch.chunk(arange(5), 4) gives 2, 2, 1: the fourth rank holds nothing and lies at the end.
  EXPECT_EQ(chunk_range(5, 4, 2), (ChunkRange{4, 1}));
  EXPECT_EQ(chunk_range(5, 4, 3), (ChunkRange{5, 0}));
  EXPECT_EQ(chunk_range(0, 4, 0), (ChunkRange{0, 0}));
}

TEST(ChunkRange, DoesNotOverflowAtTheLargestSizes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(chunk_range(kMost, 3, 2).offset + chunk_range(kMost, 3, 2).size, kMost);
  EXPECT_EQ(chunk_range(kMost - 1, kMost, kMost - 1), (ChunkRange{kMost - 1, 0}));
}

TEST(ChunkRuns, SayTheSameAsEachChunkAlone) {
  for (const std::int64_t size : {0, 1, 2, 3, 7, 8, 9, 64, 77, 1000}) {
    for (const std::int64_t count : {1, 2, 3, 4, 5, 8, 64, 78, 1001}) {
      const std::vector<ChunkRun> runs = chunk_runs(size, count);
      EXPECT_LE(runs.size(), 3U);
      std::int64_t index = 0;
      for (const ChunkRun& run : runs) {
        EXPECT_EQ(run.first, index);
        for (std::int64_t i = 0; i < run.count; ++i, ++index) {
          EXPECT_EQ((ChunkRange{run.offset + i * run.size, run.size}), chunk_range(size, count, index))
              << size << " in " << count << ", chunk " << index;
        }
      }
      EXPECT_EQ(index, count);
    }
  }
}

TEST(ChunkRuns, CostNothingForManyChunks) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(chunk_runs(5, most), (std::vector<ChunkRun>{{0, 5, 0, 1}, {5, most - 5, 5, 0}}));
  EXPECT_EQ(chunk_runs(most, 2), (std::vector<ChunkRun>{{0, 1, 0, most / 2 + 1}, {1, 1, most / 2 + 1, most / 2}}));
}

} // namespace
} // namespace tieshard

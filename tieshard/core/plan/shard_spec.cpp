#include "tieshard/core/plan/shard_spec.h"

#include <algorithm>

namespace tieshard {

ChunkRange chunk_range(std::int64_t size, std::int64_t count, std::int64_t index) {
  const std::int64_t chunk = size / count + (size % count != 0 ? 1 : 0);
  if (chunk == 0 || index > size / chunk) { // compared by division: index * chunk could overflow
    return {size, 0};
  }
  const std::int64_t offset = index * chunk;
  return {offset, std::min(chunk, size - offset)};
}

std::vector<ChunkRun> chunk_runs(std::int64_t size, std::int64_t count) {
  const ChunkRange first = chunk_range(size, count, 0);
  const std::int64_t full = first.size == 0 ? 0 : size / first.size;
  const std::int64_t rest = first.size == 0 ? 0 : size % first.size;
  const std::int64_t used = full + (rest > 0 ? 1 : 0);
  std::vector<ChunkRun> runs;
  for (const ChunkRun& run : {ChunkRun{0, full, 0, first.size},
                              ChunkRun{full, used - full, size - rest, rest},
                              ChunkRun{used, count - used, size, 0}}) {
    if (run.count > 0) {
      runs.push_back(run);
    }
  }
  return runs;
}

} // namespace tieshard

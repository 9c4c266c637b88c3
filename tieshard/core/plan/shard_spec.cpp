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

} // namespace tieshard

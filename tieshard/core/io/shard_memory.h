// tieshard/core/io/shard_memory.h
//
// Memory for shards that are copied: fresh pages, huge ones where a shard is large, packed where it is small.
//
// Flow: local_shards -> [this]
//
// Note: [Huge pages] A copy into fresh memory spends more time on page faults than on copying: four times as long with
//       pages of 4 KiB as with pages of 2 MiB. malloc gives 4 KiB pages where the system's policy is "madvise".

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tieshard {

/// Hands out zeroed memory, aligned to 64 bytes. Each large piece can be freed by itself; small ones share blocks.
class ShardMemory {
 public:
  /// `bytes` > 0. @throws std::bad_alloc
  std::shared_ptr<void> take(std::uint64_t bytes);

  /// Resident bytes at most once pieces of these sizes are taken and written, in whatever order.
  static std::uint64_t of_pieces(std::span<const std::uint64_t> pieces);

 private:
  std::shared_ptr<std::byte> block_; ///< that small pieces are cut from
  std::uint64_t used_ = 0;
};

} // namespace tieshard

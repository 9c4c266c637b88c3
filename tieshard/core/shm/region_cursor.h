// tieshard/core/shm/region_cursor.h
//
// A part of rectangles as one row of bytes.
//
// Flow: shm_regions -> [this]

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tieshard/core/shm/shm_regions.h"

namespace tieshard {

/// Walks through a part from its first byte to its last. `part` must outlive it.
class RegionCursor {
 public:
  explicit RegionCursor(const Part& part) : part_(part) {}

  /// Copies the next bytes, at most `bytes`, to `target`. Gives how many there were.
  std::size_t copy_to(std::byte* target, std::size_t bytes) {
    return walk(bytes, [&target](std::byte* here, std::size_t run) {
      std::memcpy(target, here, run);
      target += run;
    });
  }

  /// Replaces the next bytes, at most `bytes`, by those of `source`. Gives how many there were.
  std::size_t copy_from(const std::byte* source, std::size_t bytes) {
    return walk(bytes, [&source](std::byte* here, std::size_t run) {
      std::memcpy(here, source, run);
      source += run;
    });
  }

 private:
  template <typename Action>
  std::size_t walk(std::size_t bytes, const Action& action) {
    std::size_t left = bytes;
    while (left > 0 && region_ < part_.size()) {
      const Region& region = part_[region_];
      if (row_ == region.rows || region.row_bytes == 0) {
        ++region_;
        row_ = 0;
        continue;
      }
      const std::size_t run = std::min(left, region.row_bytes - column_);
      action(region.data + row_ * region.stride + column_, run);
      left -= run;
      column_ += run;
      if (column_ == region.row_bytes) {
        column_ = 0;
        ++row_;
      }
    }
    return bytes - left;
  }

  const Part& part_;
  std::size_t region_ = 0;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
};

} // namespace tieshard

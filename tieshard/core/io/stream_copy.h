// tieshard/core/io/stream_copy.h
//
// A copy that goes past the cache: for bytes that nobody looks at soon.
//
// Flow: runtime/state/checkpoint_blocks -> [this]
//
// Note: [Past the cache] An ordinary store reads the line that it replaces, a third of what a copy moves. memcpy goes
//       past the cache for one large piece only; of many tensors of 1 MB it took a quarter more time than this.

#pragma once

#include <cstddef>

namespace tieshard {

/// Copies `bytes` bytes. Neither pointer needs alignment; the ranges may not overlap. What is copied can be seen by any
/// thread that this one tells of it.
void stream_copy(std::byte* target, const std::byte* source, std::size_t bytes);

} // namespace tieshard

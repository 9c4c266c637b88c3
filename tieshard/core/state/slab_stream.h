// tieshard/core/state/slab_stream.h
//
// Tensors as they pass by: each piece is read once and seen by every worker, in order, within a bound on memory.
//
// Flow: sharded_files -> [this] -> reshard, export_checkpoint

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "tieshard/core/state/sharded_files.h"

namespace tieshard {

/// A tensor to be read, or the part of it that is wanted.
struct SlabJob {
  const ShardedTensor* tensor = nullptr;
  Box part; ///< may be empty: then it has no slab
};

/// A slab of a tensor (box_walk.h) as it came from the files: each stored block's part by itself, row-major.
struct Slab {
  struct Part {
    Box box;
    std::size_t at = 0; ///< first byte in `data`
  };

  std::size_t job = 0; ///< index into the jobs
  Box box;             ///< what of the tensor; its parts are together all of it
  std::uint64_t element_bytes = 1;
  std::vector<Part> parts;
  std::vector<std::byte> data;

  /// The elements of `target`, which lies in `box`, row-major: in `data` where they lie together there, else copied
  /// into `scratch`.
  std::span<const std::byte> gather(const Box& target, std::vector<std::byte>& scratch) const;
};

/// How much is read at once, and held.
struct SlabLimits {
  std::uint64_t slab_bytes = 1 << 20;
  std::size_t slabs = 4; ///< that are in memory at once
};

/// Of `memory` bytes for slabs and one scratch as large for each worker. Slabs stay in the cache, but hold no less than
/// 64 KiB for each of `targets`.
SlabLimits slab_limits(std::uint64_t memory, std::size_t workers, std::size_t targets);

/// Where the elements of a packed dtype are not whole bytes, a tensor is read as its bytes: give this one as the job's.
ShardedTensor as_bytes(const ShardedTensor& tensor);

/// Reads the jobs in order. Each worker is called with every slab, in order; several workers at the same time, each in
/// a thread of its own. One worker is called by the calling thread, which reads as well, unless `overlap` is true.
/// @throws what a worker or a read throws, the first
void stream_slabs(const ShardedFiles& files,
                  const std::vector<SlabJob>& jobs,
                  const SlabLimits& limits,
                  const std::vector<std::function<void(const Slab&)>>& workers,
                  bool overlap);

} // namespace tieshard

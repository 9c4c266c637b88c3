// tieshard/core/io/read_ahead.h
//
// Asks the kernel for what will be read next, so that a cold file is read in large pieces, several in flight.
//
// Flow: reader -> [this] -> the page cache

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "tieshard/core/io/read_chunk.h"

namespace tieshard {

/// Runs ahead of the threads that read `chunks` in order. Safe from several threads.
class ReadAhead {
 public:
  ReadAhead(const Checkpoint& checkpoint, std::span<const SliceRead> reads, std::span<const ReadChunk> chunks)
      : checkpoint_(checkpoint), reads_(reads), chunks_(chunks) {}

  /// Called before chunk `index` is read. Costs a system call for every few MiB where all is in memory already.
  void before(std::size_t index);

 private:
  const Checkpoint& checkpoint_;
  std::span<const SliceRead> reads_;
  std::span<const ReadChunk> chunks_;
  std::mutex mutex_;
  std::size_t next_ = 0;    ///< first chunk that was not asked for
  std::uint64_t ahead_ = 0; ///< bytes asked for of the chunks [reading_, next_)
  std::size_t reading_ = 0;
};

} // namespace tieshard

#include "tieshard/core/io/read_ahead.h"

#include <algorithm>

namespace tieshard {
namespace {

/// In flight: enough to keep a disk or a network store busy, little beside the page cache.
constexpr std::uint64_t kAheadBytes = 32 << 20;

} // namespace

void ReadAhead::before(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const auto extent = [this](std::size_t at) -> std::uint64_t {
    const ReadChunk& chunk = chunks_[at]; // where the pieces of a decoder lie only it knows
    return chunk.way == ReadChunk::Way::kDecode ? 0 : chunk.extent(reads_[chunk.slice].range);
  };
  for (; reading_ < index; ++reading_) {
    ahead_ -= reading_ < next_ ? extent(reading_) : 0;
  }
  next_ = std::max(next_, index);
  while (next_ < chunks_.size() && ahead_ < kAheadBytes) {
    const ReadChunk& chunk = chunks_[next_];
    const SliceRead& read = reads_[chunk.slice];
    checkpoint_.files()[read.file].file().read_ahead(chunk.source(read), extent(next_));
    ahead_ += extent(next_);
    ++next_;
  }
}

} // namespace tieshard

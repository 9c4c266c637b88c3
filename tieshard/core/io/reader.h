// tieshard/core/io/reader.h
//
// Executes a ReadPlan: several threads, in file order, with read-ahead; each slice is converted or decoded on its way
// and looked at for NaN while it is in the cache.
//
// Flow: plan/read_plan.h -> [this] -> memory that the caller owns
//
// Note: [Strided rows] Rows that lie near to each other are read with their gaps, into a buffer that stays in the
// cache,
//       and copied out of it. Windows of the file that are mapped for the moment would not copy the gaps, but took 1.3
//       times as long at 2 to 16 ranks (page tables of small pages); preadv that drops the gaps 1.5 times, a read for
//       each row of 2 KiB 2.6 times.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tieshard/core/io/mapped_range.h"
#include "tieshard/core/io/not_finite.h"
#include "tieshard/core/plan/read_plan.h"

namespace tieshard {

/// Where a slice goes: row-major, as many elements as the slice has.
struct ReadTarget {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  /// The slice itself, mapped, with `data` as its first byte: its pages are entered and looked at, nothing is copied.
  const MappedRange* mapping = nullptr;
};

struct ReaderOptions {
  int threads = 1;
  std::uint64_t buffer_bytes = 16 << 20; ///< of all threads together: the most that is held beyond the targets
  bool check_values = false;             ///< look for NaN and infinity in the targets
  /// Called with the bytes finished so far, from any reader thread, one call at a time.
  std::function<void(std::uint64_t)> on_progress{};
};

struct ReadReport {
  std::uint64_t bytes_asked = 0;       ///< from the files, mapped slices left out: more than those of the slices where
                                       ///< strided rows are read together
  std::vector<NotFinite> not_finite{}; ///< in the order of `reads`; empty when values were not checked
};

/// Reads slice i of `reads` into target i.
///
/// @throws PeerError io-failed, file-changed (a mapping could not be read); UsageError not-convertible. The first
///         failure stops all threads and is rethrown.
ReadReport read_slices(const Checkpoint& checkpoint,
                       std::span<const SliceRead> reads,
                       std::span<const ReadTarget> targets,
                       const ReaderOptions& options = {});

} // namespace tieshard

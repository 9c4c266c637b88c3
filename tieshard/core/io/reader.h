// tieshard/core/io/reader.h
//
// Executes a ReadPlan: several threads, large positioned reads in file order, dtype conversion in the copy.
//
// Flow: plan/read_plan.h -> [this] -> memory that the caller owns

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "tieshard/core/plan/read_plan.h"

namespace tieshard {

/// Where a slice goes: row-major, as many elements as the slice has.
struct ReadTarget {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
};

struct ReaderOptions {
  int threads = 1;
  std::uint64_t buffer_bytes = 4 << 20; ///< per thread; the most that is held beyond the targets
  /// Called with the bytes finished so far, from any reader thread, one call at a time.
  std::function<void(std::uint64_t)> on_progress{};
};

/// Reads slice i of `reads` into target i. Returns the number of bytes asked from the files (more than the slices'
/// bytes where strided rows are read together).
///
/// @throws PeerError io-failed; UsageError not-convertible. The first failure stops all threads and is rethrown.
std::uint64_t read_slices(const Checkpoint& checkpoint,
                          std::span<const SliceRead> reads,
                          std::span<const ReadTarget> targets,
                          const ReaderOptions& options = {});

} // namespace tieshard

// tieshard/core/state/box_reader.h
//
// Any rectangular part of a tensor out of the blocks that hold it.
//
// Flow: sharded_files -> [this] -> runtime/state (resume), reshard, export

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tieshard/core/state/sharded_files.h"

namespace tieshard {

/// Reads for one thread. What lies in one run in file and target is read in place; all else goes through a buffer.
class BoxReader {
 public:
  explicit BoxReader(const ShardedFiles& files, std::uint64_t buffer_bytes = 4 << 20)
      : files_(files), buffer_bytes_(buffer_bytes) {}

  /// @param box  part of the tensor; may be empty
  /// @param out  its elements, row-major, in the stored dtype
  /// @throws PeerError io-failed; UsageError bad-slice when the box is not in the tensor
  void read(const ShardedTensor& tensor, const Box& box, std::byte* out);

 private:
  const ShardedFiles& files_;
  std::uint64_t buffer_bytes_;
  std::vector<std::byte> buffer_;
};

} // namespace tieshard

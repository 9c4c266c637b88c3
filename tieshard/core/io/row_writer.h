// tieshard/core/io/row_writer.h
//
// Rows of equal length at equal distance into a file that other ranks write between them.
//
// Flow: slice_writer -> [this] -> base/file.h
//
// Note: [Mapped rows] A call for each row of 1 KiB costs three times what the copy through a shared mapping does, and
// the
//       ranks wait for each other's lock of the file. A mapping is used where that is safe: on a local file system,
//       whose page cache all writers share (over NFS a client would write its stale copy of a neighbour's bytes back),
//       and in a file whose blocks are all reserved (a full disk would be a signal otherwise).

#pragma once

#include <cstddef>
#include <cstdint>

#include "tieshard/core/base/file.h"
#include "tieshard/core/plan/strided_range.h"

namespace tieshard {

/// Writes the rows of `range`, which lie one after the other at `data`, counted from byte `begin` of the file.
/// @throws PeerError disk-full, io-failed
void write_rows(const File& file, std::uint64_t begin, const StridedRange& range, const std::byte* data);

/// Whether a shared mapping of the file's first `bytes` is as good as writes to it. @throws PeerError io-failed
bool takes_mapped_writes(const File& file, std::uint64_t bytes);

} // namespace tieshard

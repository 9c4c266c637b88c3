// tieshard/core/io/slice_writer.h
//
// The mirror of reader.h: a rank's slice into its place in a file that several ranks write together.
//
// Flow: runtime/state/hf_export -> [this] -> base/file.h

#pragma once

#include <cstddef>
#include <cstdint>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/plan/strided_range.h"

namespace tieshard {

/// Writes a slice, row-major in memory as `memory_dtype`, to the rows `range` of the tensor that begins at byte
/// `offset` of `file` and is stored as `stored_dtype`; `range` counts stored bytes. Holds one buffer of at most 4 MiB.
/// @throws PeerError disk-full, io-failed; UsageError not-convertible
void write_slice(const File& file,
                 std::uint64_t offset,
                 const StridedRange& range,
                 DType stored_dtype,
                 const std::byte* data,
                 DType memory_dtype);

} // namespace tieshard

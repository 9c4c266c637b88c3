// tieshard/core/io/decode.h
//
// Slices whose bytes in the file are not the parameter's elements: read, decoded and laid into the shard piece by
// piece. Never more of a tensor is held than one piece of it.
//
// Flow:   plan/read_plan.h -> reader, local_shards -> [this] -> memory that the caller owns
// Source: Encoding of plan/weight_source.h; one file an encoding (decode_transposed, decode_mxfp4, decode_fp8).

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/read_plan.h"

namespace tieshard {

/// A window of one stored matrix. The stored tensor is seen as matrices: the last two dimensions (one row for a 1-dim
/// tensor), or output rows of groups of 32 values for kMxfp4. Pieces write to different elements of the target.
struct DecodePiece {
  std::int64_t lead = 0; ///< index of the matrix within the slice
  std::int64_t row = 0;  ///< first stored row, counted in the whole matrix
  std::int64_t rows = 0;
  std::int64_t column = 0; ///< first stored column (of kMxfp4: group), counted in the whole matrix
  std::int64_t columns = 0;
  bool read_gaps = false; ///< rows lie so near to each other that they are read together
};

/// Cuts a slice into pieces that threads may take in any order and at the same time. A piece holds about
/// `buffer_bytes`, at least 4 KiB and at most 1 MiB, and the scales that belong to it.
/// Pre: read.encoding is not kPlain.
std::vector<DecodePiece> cut_encoded(const SliceRead& read, std::uint64_t buffer_bytes);

/// Reads and decodes one piece into its place in `target`, which holds the whole slice row-major in `target_dtype`, a
/// wide float. `buffer` is the thread's own and grows to what the piece needs. Returns the bytes asked from the files.
/// @throws PeerError io-failed; UsageError not-convertible
std::uint64_t decode_piece(const Checkpoint& checkpoint,
                           const SliceRead& read,
                           const DecodePiece& piece,
                           std::byte* target,
                           DType target_dtype,
                           std::vector<std::byte>& buffer);

/// All pieces of a slice, one after another. May be called from several threads at once, for different slices.
/// @throws whatever decode_piece throws
std::uint64_t read_encoded(const Checkpoint& checkpoint,
                           const SliceRead& read,
                           std::byte* target,
                           DType target_dtype,
                           std::uint64_t buffer_bytes);

} // namespace tieshard

// tieshard/core/io/stored_window.h
//
// Where a slice lies in a stored matrix, and how its rows get into a buffer: what all decoders need.
//
// Flow: decode.h -> [this] -> base/file.h

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tieshard/core/base/file.h"
#include "tieshard/core/plan/read_plan.h"

namespace tieshard {

/// A slice of a parameter, seen as matrices of its last two dimensions. A 1-dim parameter is one row.
struct SliceMatrices {
  std::int64_t leads = 1; ///< matrices in the slice
  std::int64_t row = 0;   ///< of the slice in each matrix
  std::int64_t rows = 1;
  std::int64_t column = 0;
  std::int64_t columns = 1;
  std::int64_t whole_rows = 1;
  std::int64_t whole_columns = 1;

  explicit SliceMatrices(const SliceRead& read);

  /// Index in the whole tensor of matrix `lead` of the slice.
  std::int64_t whole_lead(std::int64_t lead) const;

  /// Index in the slice's memory of an element, by the whole matrix's row and column.
  std::uint64_t local_index(std::int64_t lead, std::int64_t whole_row, std::int64_t whole_column) const;

 private:
  // A leading dimension that is sharded: `lead_size_` of `lead_whole_` indices from `lead_offset_` on, `lead_inner_`
  // matrices to each.
  std::int64_t lead_size_ = 1;
  std::int64_t lead_whole_ = 1;
  std::int64_t lead_offset_ = 0;
  std::int64_t lead_inner_ = 1;
};

/// Rows of equal length at equal distance in a file.
struct FileRows {
  std::uint64_t first = 0; ///< byte in the file
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t stride = 0;

  /// Bytes of buffer that reading them takes.
  std::uint64_t buffer_bytes(bool read_gaps) const;

  /// Distance of two rows in that buffer.
  std::uint64_t pitch(bool read_gaps) const {
    return read_gaps || stride == row_bytes ? stride : row_bytes;
  }

  /// Fills `buffer`; one system call when the rows touch or gaps are read. Returns the bytes asked.
  /// @throws PeerError io-failed
  std::uint64_t read(const File& file, bool read_gaps, std::byte* buffer) const;
};

/// Gives a buffer of at least `bytes` bytes; what it held is lost.
std::byte* grown(std::vector<std::byte>& buffer, std::uint64_t bytes);

} // namespace tieshard

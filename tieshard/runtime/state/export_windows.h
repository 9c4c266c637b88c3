// tieshard/runtime/state/export_windows.h
//
// Which bytes of an exported file each rank writes: long runs, whatever dimension a tensor is cut on. Pure; equal on
// every rank.
//
// Flow: export_layout, shard_plan -> [this] -> export_writer
//
// Note: [Windows] A tensor that is cut on its last dim lies in the file as short rows, a part of each on every rank. So
//       such a file is cut into windows of whole rows; each rank writes neighbouring ones, for which the others give it
//       their parts of those rows. What is whole, or lies in long runs on its rank already, that rank writes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/state/export_layout.h"

namespace tieshard {

/// A row-major tensor as rows over all indices before the dimension that it is cut on.
struct CutRows {
  std::uint64_t rows = 0;
  std::uint64_t index_bytes = 0; ///< of a row, for one index of that dimension
  std::uint64_t row_bytes = 0;   ///< of a whole row
};

/// Pre: the tensor is cut: parameter.dim >= 0.
CutRows cut_rows(const ShardedParameter& parameter, DType stored);

/// Rows of one tensor in a window.
struct WindowPiece {
  const ShardedParameter* parameter = nullptr; ///< of the plan
  CutRows cut;
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
  std::uint64_t at = 0; ///< byte of the window at which they begin
  DType stored = DType::kF32;
};

/// Bytes of the file that one rank writes at once.
struct ExportWindow {
  std::uint64_t offset = 0; ///< in the file
  std::uint64_t bytes = 0;
  std::vector<WindowPiece> pieces;
};

struct ExportWindows {
  std::vector<ExportWindow> windows;         ///< in the order of the file
  std::vector<const TensorEntry*> by_slices; ///< parameters of which each rank writes what it holds
  std::vector<const TensorEntry*> copied;    ///< tensor i is written by rank i % ranks
  std::int64_t ranks = 1;

  /// How many windows a rank has: the first ranks so many, the last ones fewer or none.
  std::size_t of_rank() const noexcept {
    const auto count = static_cast<std::size_t>(ranks);
    return (windows.size() + count - 1) / count;
  }
  /// The window that `rank` writes in step `step` < of_rank(); null where it has none left.
  const ExportWindow* window(std::int64_t rank, std::size_t step) const {
    const std::size_t index = static_cast<std::size_t>(rank) * of_rank() + step;
    return index < windows.size() ? &windows[index] : nullptr;
  }
};

inline constexpr std::uint64_t kWindowBytes = 4 << 20;

/// @param most_bytes  of a window; a tensor with a longer row is written by slices
ExportWindows export_windows(const ExportFile& file, const ShardPlan& plan, std::uint64_t most_bytes = kWindowBytes);

/// Bytes that rank `rank` holds of a window. None holds more than rank 0.
std::uint64_t bytes_held(const ExportWindow& window, const ShardPlan& plan, std::int64_t rank);

} // namespace tieshard

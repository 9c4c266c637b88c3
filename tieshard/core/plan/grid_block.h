// tieshard/core/plan/grid_block.h
//
// The block that FP8 scales stand for where config.json does not say it: what the shapes of all grids allow.
//
// Flow:   checkpoint -> [this] -> weight_source
// Source: a quantiser of transformers uses one block for all matrices of a model; a scale stands for a started block.

#pragma once

#include <limits>
#include <optional>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/weight_source.h"

namespace tieshard {

/// Sizes from `least` to `most` in which a dimension is cut into as many blocks as its scales are.
struct BlockRange {
  std::int64_t least = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max(); ///< the largest number: one block, however long

  bool contains(std::int64_t size) const {
    return least <= size && size <= most;
  }
  bool is_one() const {
    return least == most || most == std::numeric_limits<std::int64_t>::max();
  }
};

/// What the grids of scales of a checkpoint have in common.
struct GridBlock {
  BlockRange rows;
  BlockRange columns;
  const StoredTensor* values = nullptr; ///< with `scales`: the first of them
  const StoredTensor* scales = nullptr;
  std::size_t grids = 0;

  /// True when just one block fits all grids.
  bool is_certain() const;

  /// That one, else 128 by 128 where it fits: what transformers takes where config.json is silent.
  std::optional<ScaleBlock> block() const;
};

/// True when `scales` has one element for each block of each matrix of `values`: the same number of dimensions, and
/// between one and all rows and columns.
bool is_scale_grid(const Shape& values, const Shape& scales);

/// Of all FP8 tensors whose scales are grids and fit no other way; nothing when there are none.
std::optional<GridBlock> grid_block(const Checkpoint& checkpoint);

/// The note that `block` was derived.
Diagnostic derived_block(const Checkpoint& checkpoint, const GridBlock& grids, const ScaleBlock& block);

/// That several blocks fit, or none. Pre: grids.block() is none
Diagnostic block_not_known(const Checkpoint& checkpoint, const GridBlock& grids);

} // namespace tieshard

// tests/support/batch.h
//
// A global batch, and each rank's part of it.

#pragma once

#include <ATen/ATen.h>

#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard::testing {

/// ids and labels int64 [B, T] of the global batch.
struct Batch {
  at::Tensor ids;
  at::Tensor labels;
};

/// Rows rank, rank + ranks, ... of the batch; a rank without a row gets row 0 without targets.
inline Batch part_of(const Batch& global, const DeviceMesh& mesh) {
  if (mesh.rank() >= global.ids.size(0)) {
    return {global.ids.narrow(0, 0, 1), at::full_like(global.labels.narrow(0, 0, 1), kIgnoredLabel)};
  }
  const at::Tensor rows = at::arange(mesh.rank(), global.ids.size(0), mesh.size(), at::kLong);
  return {global.ids.index_select(0, rows), global.labels.index_select(0, rows)};
}

/// A batch of tokens below `vocab`, with labels where the rows have unequal numbers of targets.
inline Batch make_batch(std::int64_t rows, std::int64_t length, std::int64_t vocab) {
  const at::Tensor ids = (at::arange(rows * length, at::kLong) * 7919 + 13).remainder(vocab).view({rows, length});
  at::Tensor labels = ids.clone();
  for (std::int64_t row = 0; row < rows; ++row) {
    labels[row].narrow(0, 0, (3 * row + 1) % length).fill_(kIgnoredLabel);
  }
  return {ids, labels};
}

} // namespace tieshard::testing

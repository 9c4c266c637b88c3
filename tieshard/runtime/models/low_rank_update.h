// tieshard/runtime/models/low_rank_update.h
//
// What a layer's output may get in addition: a product of two narrow matrices on the layer's input. Layers know how to
// add it and not what it is for; nothing is set by default.
//
// Flow:   runtime/adapters -> [this] <- layers, causal_lm
// Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models"; the order of operations of PEFT's layers.
//
// Shape suffixes: R rank.

#pragma once

#include <ATen/core/Tensor.h>

namespace tieshard {

/// y + scaling * dropout(x) A^T B^T, for x [..., in] and y [..., out].
///
/// The tensors are the module's own parameters, so that whoever changes those changes these. Another use of a tied
/// weight has the same two, turned: its A is B^T.
struct LowRankUpdate {
  at::Tensor a; ///< [R, in]; turned: [R, out]
  at::Tensor b; ///< [out, R]; turned: [in, R]
  double scaling = 1.0;
  double dropout = 0.0; ///< of the input, in train mode
  bool turned = false;

  at::Tensor down() const; ///< [R, in]
  at::Tensor up() const;   ///< [out, R]

  /// dropout(x) A^T scaling [..., R], in the dtype of A.
  at::Tensor narrow(const at::Tensor& x, bool training) const;

  /// y and the update, in y's dtype; the product is computed in that of A and B.
  at::Tensor add_to(const at::Tensor& y, const at::Tensor& x, bool training) const;

  /// The same for rows of an embedding: y [..., out] of ids [...]; A [R, vocab]. No dropout.
  at::Tensor add_to_rows(const at::Tensor& y, const at::Tensor& ids, std::int64_t padding_idx) const;
};

} // namespace tieshard

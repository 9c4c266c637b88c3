// tieshard/runtime/models/shared_embedding.h
//
// The embedding of a weight that has another use, a tied head's: without a second whole gradient of the weight.
//
// Flow:   layers -> [this] -> autograd
// Source: what autograd does with two uses of a leaf: it adds up two tensors of the leaf's shape [V, H], of which the
//         embedding's is zeros but for the rows of the batch.
//
// Note: [Rows] The embedding's node gives the leaf nothing; it leaves its rows with a hook on the leaf. Autograd calls
//       that once in a pass, when the gradients of all uses are there, and it adds the rows into their sum. Rows of a
//       pass that an exception ended are told by the number of the pass, and dropped.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tieshard {

class SharedEmbedding {
 public:
  /// Puts the hook on `weight` [V, H], a leaf; it lives as long as the weight.
  explicit SharedEmbedding(const at::Tensor& weight);

  /// ids int64 [...] -> rows of `weight` [..., H], the tensor given above. Its gradient is that of at::embedding, with
  /// the rows of equal ids summed in float32. With create_graph the gradient is at::embedding's own.
  at::Tensor lookup(const at::Tensor& weight, const at::Tensor& ids, std::int64_t padding_idx) const;

  struct Rows;

 private:
  std::shared_ptr<Rows> rows_;
};

} // namespace tieshard

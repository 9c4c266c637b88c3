// tieshard/runtime/models/linear_cross_entropy.h
//
// A head and its loss in one, in pieces of rows: the logits of a large vocabulary never exist whole.
//
// Flow:   models/language_model.h -> [this]
// Source: the chunked, fused linear cross entropy of Liger Kernel (gradients are computed in the forward pass, since
// the
//         loss is linear in what comes back); torch's cross_entropy for the numbers.
//
// Shape suffixes: R rows (tokens), H hidden, V vocab, K a narrow width.

#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tieshard {

/// A second, narrow product that is added to the logits: u [R, K] times weight [V, K]^T, in the dtype of `u`.
/// Undefined: none.
struct AddedLogits {
  at::Tensor u_RK{};
  at::Tensor weight_VK{};
};

struct LinearCrossEntropyOptions {
  std::int64_t ignored = -100; ///< a target that is none
  double scale = 1.0;
  double softcap = 0.0; ///< the logits become cap * tanh(logits / cap); 0: they stay
  AddedLogits added{};  ///< before the cap
};

/// scale * sum over rows of cross_entropy(x W^T, target), in nats, float32, 0-dim. Logits are computed in x's dtype,
/// the softmax in float32, in pieces of at most kLogitsBytes. Rows whose target is `ignored` cost nothing and get a
/// zero gradient. Where a gradient is wanted, those of x and W are made here and kept until backward: [R, H] and [V,
/// H]; the same holds of `added`.
///
/// @param x_RH       floating point, the dtype of weight_VH
/// @param targets_R  int64; 0 .. V-1 or `ignored`
/// @throws UsageError wrong-state from backward(create_graph=true): there is no second derivative
at::Tensor linear_cross_entropy_sum(const at::Tensor& x_RH,
                                    const at::Tensor& weight_VH,
                                    const at::Tensor& targets_R,
                                    const LinearCrossEntropyOptions& options = {});

/// Of the float32 logits that exist at once, unless one row takes more.
inline constexpr std::int64_t kLogitsBytes = std::int64_t{32} << 20;

} // namespace tieshard

// tieshard/runtime/models/attention_mask.h
//
// Which keys each query sees: those before it, within a window, in its own document.
//
// Flow:   decoder, gpt2 -> [this] -> attention
// Source: transformers 5.24 masking_utils.py (a window counts the query's own key); docs/training.md for documents.
//
// Shape suffixes: B batch, T queries, S keys.

#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tieshard {

/// What is added to the scores before the softmax.
struct AttentionMask {
  bool causal = false; ///< no bias is needed: a query sees the keys up to its own, and T = S
  at::Tensor bias{};   ///< [T, S] or [B, 1, T, S]: 0 or -inf; undefined: a query sees all, or as `causal` says
};

struct AttentionMaskOptions {
  std::int64_t past = 0;       ///< keys before the first query's own
  std::int64_t window = 0;     ///< keys that a query sees at most, its own included; 0: all
  at::Tensor documents_BT{};   ///< int64, not decreasing; undefined: one document. Not with `past`
  at::TensorOptions options{}; ///< dtype and device of the bias
};

/// The mask of `length` queries on past + length keys; without a bias wherever none is needed.
AttentionMask make_attention_mask(std::int64_t length, const AttentionMaskOptions& options);

/// int64 [T], or [B, T] with documents: how far each token is from the begin of its document.
at::Tensor token_positions(std::int64_t length, std::int64_t past, const at::Tensor& documents_BT, at::Device device);

} // namespace tieshard

// tieshard/runtime/models/attention.h
//
// softmax(q k^T) v in the variants that decoders have: masks, sinks, capped scores, fewer key than query heads.
//
// Flow:   decoder, gpt2, t5 -> [this] -> sink_attention.h, ATen
// Source: torch's scaled_dot_product_attention; transformers 5.24 eager_attention_forward of gemma2 and gpt_oss.
//
// Shape suffixes: B batch, T queries, S keys, N query heads, K key/value heads, D head_dim.

#pragma once

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/models/attention_mask.h"

namespace tieshard {

struct AttentionOptions {
  double scale = 1.0;   ///< of the scores
  double softcap = 0.0; ///< scores become cap * tanh(scores / cap) before the mask; 0: they do not
  double dropout = 0.0; ///< of the weights
  at::Tensor sinks{};   ///< [N]: one more logit for each head, unscaled, without a value; undefined: none
};

/// q [B, N, T, D], k and v [B, K, S, D] -> [B, N, T, D]; N is a multiple of K, and query head n reads key/value head
/// n / (N / K). torch's scaled_dot_product_attention where it applies, i.e. without a cap; with sinks its CPU kernel,
/// corrected (sink_attention.h); else plain products, softmax in float32.
at::Tensor attend(const at::Tensor& q_BNTD,
                  const at::Tensor& k_BKSD,
                  const at::Tensor& v_BKSD,
                  const AttentionMask& mask,
                  const AttentionOptions& options);

} // namespace tieshard

// tieshard/runtime/models/sink_attention.h
//
// Attention with a sink: one more logit for each head, which takes its share of the softmax and gives no value. The
// scores never exist whole.
//
// Flow:   attention -> [this] -> torch's flash attention for CPUs
// Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks"; Dao et al., "FlashAttention" (the
//         logsumexp that forward and backward share).
//
// Note: [Correction] A kernel without sinks gives y and l = logsumexp(scores). With the sink s, the logsumexp is
//       l' = log(exp(l) + exp(s)) and the result y' = y exp(l - l'). The kernel's backward needs only its inputs, y'
//       and l': it makes the weights exp(score - l') anew, and those are the right ones. The sink's own weight is exp(s
//       - l'); its value is zero, so its gradient is the sum of -exp(s - l') (dy' . y').

#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace tieshard {

/// q [B, N, T, D], k and v [B, N, S, D], sinks [N] -> [B, N, T, D], on a CPU. Differentiated once.
/// @param bias    added to the scores, [T, S] or [B, 1, T, S]; gets no gradient
/// @param causal  without a bias: a query sees the keys up to its own
/// @throws UsageError wrong-state from backward(create_graph=true)
at::Tensor sink_attention(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& sinks,
                          const std::optional<at::Tensor>& bias,
                          bool causal,
                          double scale);

} // namespace tieshard

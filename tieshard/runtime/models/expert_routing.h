// tieshard/runtime/models/expert_routing.h
//
// Which tokens go through which experts, and how what comes back is added up.
//
// Flow:   experts -> [this]
// Source: Shazeer et al., "Outrageously Large Neural Networks"; transformers 5.24 modeling_qwen3_moe.py,
//         modeling_mixtral.py and modeling_gpt_oss.py (what is normalised, and when).
//
// Shape suffixes: R rows (tokens), E experts, C experts that a token chooses, M = R C, H hidden.

#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/core/families/decoder_config.h"

namespace tieshard {

/// Every choice of every token, by expert and then by token.
struct ExpertRouting {
  at::Tensor rows_M;                ///< int64: the token of each choice
  at::Tensor weights_M;             ///< of its expert's result; carries the router's gradient
  std::vector<std::int64_t> counts; ///< choices of each expert, [E], zeros included

  /// x [R, H] -> the row of each choice, [M, H].
  at::Tensor dispatch(const at::Tensor& x_RH) const;

  /// What the experts made of dispatch()'s rows, weighted and added up by token: [M, H] -> [R, H].
  at::Tensor combine(const at::Tensor& y_MH, std::int64_t rows) const;
};

/// Each token chooses the experts of its `chosen` largest logits. Their weights: the softmax over all experts, in
/// float32, of the chosen ones (made to sum to one where `renormalise` is set); of GPT-OSS the softmax over the chosen.
/// @param logits_RE  of the router
ExpertRouting route(const at::Tensor& logits_RE, const ExpertsConfig& config);

} // namespace tieshard

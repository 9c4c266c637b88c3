// tieshard/runtime/models/experts.h
//
// Mixtures of experts in place of a decoder layer's MLP.
//
// Flow:   models/decoder.h -> [this] -> expert_routing.h, grouped_linear.h
// Source: transformers 5.24 modeling_qwen2_moe.py, modeling_qwen3_moe.py, modeling_mixtral.py,
//         modeling_gpt_oss.py.
//
// Note: [Experts without tokens] An expert that no token of the batch chose has a gradient of zeros and not none, as it
//       has in transformers 5, where all experts are one parameter: the optimizer goes on decaying it.
//
// Shape suffixes: B batch, T sequence, E experts, H hidden, I intermediate.

#pragma once

#include <memory>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>

#include "tieshard/runtime/models/gated_mlp.h"

namespace tieshard {

/// One gated MLP an expert: Qwen2-MoE's and Qwen3-MoE's `mlp` and Mixtral's `block_sparse_moe`. What a token's experts
/// give is added up; a shared one, where there is one, counts as much as the sigmoid of its gate.
class SparseMoeImpl : public torch::nn::Module {
 public:
  SparseMoeImpl(const DecoderConfig& config, const at::TensorOptions& options);

  /// x [B, T, H] -> [B, T, H]
  at::Tensor forward(const at::Tensor& x_BTH);

 private:
  ExpertsConfig config_;
  Linear gate_{nullptr}; ///< the router
  std::vector<GatedMlp> experts_;
  GatedMlp shared_expert_{nullptr};    ///< where config_ has a size for it
  Linear shared_expert_gate_{nullptr}; ///< [1, H]
};
TORCH_MODULE(SparseMoe);

/// All experts' matrices in four parameters, used as x W: [E, H, 2I], [E, 2I], [E, I, H], [E, H].
class StackedExpertsImpl : public torch::nn::Module {
 public:
  StackedExpertsImpl(std::int64_t hidden, const ExpertsConfig& config, const at::TensorOptions& options);

  at::Tensor gate_up_proj, gate_up_proj_bias, down_proj, down_proj_bias;
};
TORCH_MODULE(StackedExperts);

/// GPT-OSS's `mlp`: a router with a bias over stacked experts.
class StackedMoeImpl : public torch::nn::Module {
 public:
  StackedMoeImpl(const DecoderConfig& config, const at::TensorOptions& options);

  /// x [B, T, H] -> [B, T, H]
  at::Tensor forward(const at::Tensor& x_BTH);

 private:
  ExpertsConfig config_;
  Linear router_{nullptr};
  StackedExperts experts_{nullptr};
};
TORCH_MODULE(StackedMoe);

} // namespace tieshard

// tieshard/runtime/models/gpt2.h
//
// GPT-2 as pure single-device modules: learned positions, LayerNorms with bias, linear layers stored [in, out].
//
// Flow:   core/families/gpt2.h -> [this] -> make_model
// Source: transformers 5.24 modeling_gpt2.py; Radford et al., "Language Models are Unsupervised Multitask Learners".
//
// Shape suffixes: B batch, T sequence, N heads, D head size, H hidden.

#pragma once

#include <vector>

#include <torch/nn/modules/container/modulelist.h>

#include "tieshard/core/families/gpt2.h"
#include "tieshard/runtime/models/attention_mask.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// y = x W + b, W [in, out].
class Conv1dImpl : public torch::nn::Module {
 public:
  Conv1dImpl(std::int64_t in, std::int64_t out, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) const;

  at::Tensor weight, bias;
};
TORCH_MODULE(Conv1d);

class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(std::int64_t size, double eps, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) const;

  at::Tensor weight, bias;

 private:
  double eps_;
};
TORCH_MODULE(LayerNorm);

class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  Gpt2AttentionImpl(const Gpt2Config& config, std::int64_t layer, const at::TensorOptions& options);

  /// x [B, T, H] -> [B, T, H]
  at::Tensor forward(const at::Tensor& x_BTH, const AttentionMask& mask, KvCache* cache);

 private:
  std::int64_t layer_, heads_;
  double scale_, dropout_, residual_dropout_;
  Conv1d c_attn_{nullptr}; ///< columns q | k | v
  Conv1d c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Attention);

class Gpt2MlpImpl : public torch::nn::Module {
 public:
  Gpt2MlpImpl(const Gpt2Config& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  const char* approximation_;
  double dropout_;
  Conv1d c_fc_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Mlp);

class Gpt2BlockImpl : public torch::nn::Module {
 public:
  Gpt2BlockImpl(const Gpt2Config& config, std::int64_t layer, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH, const AttentionMask& mask, KvCache* cache);

 private:
  LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  Gpt2Attention attn_{nullptr};
  Gpt2Mlp mlp_{nullptr};
};
TORCH_MODULE(Gpt2Block);

/// Embeddings, blocks and last norm (`transformer.` of the checkpoint).
class Gpt2ModelImpl : public torch::nn::Module {
 public:
  Gpt2ModelImpl(const Gpt2Config& config, bool tied, const at::TensorOptions& options);

  /// @throws InputError token-out-of-range for a sequence longer than there are positions
  at::Tensor forward(const at::Tensor& ids_BT, const SequenceInfo& info, UnitRunner& runner);

  Embedding wte{nullptr};
  std::vector<Gpt2Block> blocks;

 private:
  Gpt2Config config_;
  Embedding wpe_{nullptr};
  LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt2Model);

class Gpt2ForCausalLm : public LanguageModel {
 public:
  /// @param tied  the head is the embedding: one tensor under two names
  Gpt2ForCausalLm(const Gpt2Config& config, bool tied, const at::TensorOptions& options);

  std::vector<UnitModule> units() override;
  std::int64_t cached_layers() const override;

 protected:
  at::Tensor hidden_states(const at::Tensor& ids_BT, const SequenceInfo& info) override;
  const LinearImpl& head() const override;

 private:
  Gpt2Model transformer_{nullptr};
  Linear lm_head_{nullptr};
};

} // namespace tieshard

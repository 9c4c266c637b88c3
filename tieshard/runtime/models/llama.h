// tieshard/runtime/models/llama.h
//
// The Llama family as pure single-device modules. Submodule names are the Hugging Face names, so parameter names are
// too.
//
// Flow:   core/families/llama.h -> [this] -> make_model
// Source: transformers 5.24 modeling_llama.py; RoFormer (rotary embedding), GQA (Ainslie et al. 2023).
//
// Shape suffixes: B batch, T sequence, N heads, K key/value heads, D head_dim, H hidden, V vocab.

#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include "tieshard/core/families/llama.h"
#include "tieshard/runtime/models/causal_lm.h"
#include "tieshard/runtime/models/layers.h"

namespace tieshard {

/// Causal self-attention with N query heads over K key/value heads.
class LlamaAttentionImpl : public torch::nn::Module {
 public:
  LlamaAttentionImpl(const LlamaConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& cos_TD, const at::Tensor& sin_TD);

 private:
  std::int64_t heads_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  double dropout_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
};
TORCH_MODULE(LlamaAttention);

/// down(silu(gate(x)) * up(x)).
class LlamaMlpImpl : public torch::nn::Module {
 public:
  LlamaMlpImpl(const LlamaConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH);

 private:
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};
TORCH_MODULE(LlamaMlp);

class LlamaDecoderLayerImpl : public torch::nn::Module {
 public:
  LlamaDecoderLayerImpl(const LlamaConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& cos_TD, const at::Tensor& sin_TD);

 private:
  LlamaAttention self_attn_{nullptr};
  LlamaMlp mlp_{nullptr};
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
};
TORCH_MODULE(LlamaDecoderLayer);

/// Embedding, decoder layers and final norm (`model.` of the checkpoint).
class LlamaModelImpl : public torch::nn::Module {
 public:
  /// @param tied  the head uses the embedding too
  LlamaModelImpl(const LlamaConfig& config, bool tied, const at::TensorOptions& options);

  /// ids int64 [B, T] -> hidden states [B, T, H]; each layer runs through `runner`.
  at::Tensor forward(const at::Tensor& ids_BT, UnitRunner& runner);

  Embedding embed_tokens{nullptr};
  std::vector<LlamaDecoderLayer> decoder_layers;

 private:
  RmsNorm norm_{nullptr};
  RotaryEmbedding rotary_emb_{nullptr};
};
TORCH_MODULE(LlamaModel);

class LlamaForCausalLm : public CausalLm {
 public:
  /// @param tied  the head is the embedding: one tensor under two names
  LlamaForCausalLm(const LlamaConfig& config, bool tied, const at::TensorOptions& options);

  std::vector<UnitModule> units() override;

 protected:
  at::Tensor hidden_states(const at::Tensor& ids_BT) override;
  const LinearImpl& head() const override;

 private:
  LlamaModel model_{nullptr};
  Linear lm_head_{nullptr};
};

} // namespace tieshard

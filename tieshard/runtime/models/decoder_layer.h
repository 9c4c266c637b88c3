// tieshard/runtime/models/decoder_layer.h
//
// One layer of a gated decoder: attention, then an MLP or a mixture of experts, each with its norms.
//
// Flow:   models/decoder.h -> [this] -> attention.h, gated_mlp.h, experts.h
// Source: transformers 5.24 modeling files of the families that core/families/decoder_config.h names; GQA (Ainslie et
//         al. 2023).
//
// Shape suffixes: B batch, T sequence, S keys, N heads, K key/value heads, D head_dim, H hidden.

#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/core/families/decoder_config.h"
#include "tieshard/runtime/models/attention_mask.h"
#include "tieshard/runtime/models/experts.h"
#include "tieshard/runtime/models/gated_mlp.h"
#include "tieshard/runtime/models/kv_cache.h"
#include "tieshard/runtime/models/layers.h"
#include "tieshard/runtime/models/rotary_embedding.h"

namespace tieshard {

/// What the layers of one forward share. Kept by those that are computed again in the backward pass.
struct DecoderPass {
  std::vector<RotaryAngles> angles; ///< as DecoderConfig::ropes
  std::vector<AttentionMask> masks; ///< of each layer
  KvCache* cache = nullptr;
};

/// Causal self-attention with N query heads over K key/value heads.
class DecoderAttentionImpl : public torch::nn::Module {
 public:
  DecoderAttentionImpl(const DecoderConfig& config, std::int64_t layer, const at::TensorOptions& options);

  /// x [B, T, H] -> [B, T, H]
  at::Tensor forward(const at::Tensor& x_BTH, const DecoderPass& pass);

 private:
  struct Heads {
    at::Tensor q_BNTD, k_BKTD, v_BKTD;
  };

  Heads project(const at::Tensor& x_BTH);

  std::int64_t layer_;
  std::int64_t heads_, kv_heads_, head_dim_;
  std::size_t rope_;
  double scale_, dropout_, softcap_;
  at::Tensor sinks_; ///< [N]; undefined without
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr};
  Linear qkv_proj_{nullptr}; ///< in place of the three: rows q | k | v
  Linear o_proj_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};
};
TORCH_MODULE(DecoderAttention);

class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const DecoderConfig& config, std::int64_t layer, const at::TensorOptions& options);

  /// x [B, T, H] -> [B, T, H]
  at::Tensor forward(const at::Tensor& x_BTH, const DecoderPass& pass);

 private:
  at::Tensor feed_forward(const at::Tensor& x_BTH);

  DecoderAttention self_attn_{nullptr};
  GatedMlp mlp_{nullptr}; ///< one of these three
  SparseMoe sparse_moe_{nullptr};
  StackedMoe stacked_moe_{nullptr};
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
  RmsNorm pre_feedforward_layernorm_{nullptr}, post_feedforward_layernorm_{nullptr}; ///< with branch norms
};
TORCH_MODULE(DecoderLayer);

} // namespace tieshard

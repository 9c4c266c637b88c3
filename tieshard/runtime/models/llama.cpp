#include "tieshard/runtime/models/llama.h"

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/models/lean_functions.h"

namespace tieshard {

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config, const at::TensorOptions& options)
    : heads_(config.num_attention_heads),
      kv_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim),
      dropout_(config.attention_dropout) {
  const bool bias = config.attention_bias;
  q_proj_ = register_module("q_proj", Linear(config.hidden_size, heads_ * head_dim_, bias, options));
  k_proj_ = register_module("k_proj", Linear(config.hidden_size, kv_heads_ * head_dim_, bias, options));
  v_proj_ = register_module("v_proj", Linear(config.hidden_size, kv_heads_ * head_dim_, bias, options));
  o_proj_ = register_module("o_proj", Linear(heads_ * head_dim_, config.hidden_size, bias, options));
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x_BTH, const at::Tensor& cos_TD, const at::Tensor& sin_TD) {
  const std::int64_t batch = x_BTH.size(0);
  const std::int64_t length = x_BTH.size(1);
  const auto split = [&](const at::Tensor& x, std::int64_t heads) {
    return x.view({batch, length, heads, head_dim_}).transpose(1, 2);
  };
  const at::Tensor q_BNTD = apply_rotary(split(q_proj_->forward(x_BTH), heads_), cos_TD, sin_TD);
  const at::Tensor k_BKTD = apply_rotary(split(k_proj_->forward(x_BTH), kv_heads_), cos_TD, sin_TD);
  const at::Tensor v_BKTD = split(v_proj_->forward(x_BTH), kv_heads_);
  const auto repeat = [&](const at::Tensor& x) { return x.repeat_interleave(heads_ / kv_heads_, 1); };
  const at::Tensor y_BNTD = at::scaled_dot_product_attention(
      q_BNTD, repeat(k_BKTD), repeat(v_BKTD), {}, is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  return o_proj_->forward(y_BNTD.transpose(1, 2).reshape({batch, length, heads_ * head_dim_}));
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaConfig& config, const at::TensorOptions& options) {
  const bool bias = config.mlp_bias;
  gate_proj_ = register_module("gate_proj", Linear(config.hidden_size, config.intermediate_size, bias, options));
  up_proj_ = register_module("up_proj", Linear(config.hidden_size, config.intermediate_size, bias, options));
  down_proj_ = register_module("down_proj", Linear(config.intermediate_size, config.hidden_size, bias, options));
}

at::Tensor LlamaMlpImpl::forward(const at::Tensor& x_BTH) {
  return down_proj_->forward(silu_times(gate_proj_->forward(x_BTH), up_proj_->forward(x_BTH)));
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config, const at::TensorOptions& options) {
  const auto norm = [&] { return RmsNorm(config.hidden_size, config.rms_norm_eps, options); };
  self_attn_ = register_module("self_attn", LlamaAttention(config, options));
  mlp_ = register_module("mlp", LlamaMlp(config, options));
  input_layernorm_ = register_module("input_layernorm", norm());
  post_attention_layernorm_ = register_module("post_attention_layernorm", norm());
}

at::Tensor LlamaDecoderLayerImpl::forward(const at::Tensor& x_BTH, const at::Tensor& cos_TD, const at::Tensor& sin_TD) {
  const at::Tensor attended = x_BTH + self_attn_->forward(input_layernorm_->forward(x_BTH), cos_TD, sin_TD);
  return attended + mlp_->forward(post_attention_layernorm_->forward(attended));
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config, bool tied, const at::TensorOptions& options) {
  embed_tokens = register_module(
      "embed_tokens", Embedding(config.vocab_size, config.hidden_size, config.pad_token_id, options, /*shared=*/tied));
  auto layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    decoder_layers.emplace_back(config, options);
    layers->push_back(decoder_layers.back());
  }
  norm_ = register_module("norm", RmsNorm(config.hidden_size, config.rms_norm_eps, options));
  rotary_emb_ = register_module("rotary_emb", RotaryEmbedding(config.head_dim, config.rope));
}

at::Tensor LlamaModelImpl::forward(const at::Tensor& ids_BT, UnitRunner& runner) {
  at::Tensor x_BTH = embed_tokens->forward(ids_BT);
  const auto [cos_TD, sin_TD] = rotary_emb_->forward(ids_BT.size(1), x_BTH.scalar_type());
  for (LlamaDecoderLayer& layer : decoder_layers) {
    // By value: with activation checkpointing it runs again in the backward pass.
    x_BTH = runner.run(*layer, x_BTH, [layer = layer.get(), cos = cos_TD, sin = sin_TD](const at::Tensor& x) {
      return layer->forward(x, cos, sin);
    });
  }
  return norm_->forward(x_BTH);
}

LlamaForCausalLm::LlamaForCausalLm(const LlamaConfig& config, bool tied, const at::TensorOptions& options) {
  model_ = register_module("model", LlamaModel(config, tied, options));
  lm_head_ = register_module("lm_head",
                             tied ? Linear(model_->embed_tokens->weight)
                                  : Linear(config.hidden_size, config.vocab_size, /*with_bias=*/false, options));
}

at::Tensor LlamaForCausalLm::hidden_states(const at::Tensor& ids_BT) {
  return model_->forward(ids_BT, *unit_runner());
}

const LinearImpl& LlamaForCausalLm::head() const {
  return *lm_head_;
}

std::vector<UnitModule> LlamaForCausalLm::units() {
  std::vector<UnitModule> units{{"", this}};
  for (std::size_t layer = 0; layer < model_->decoder_layers.size(); ++layer) {
    units.push_back({concat("model.layers.", layer), model_->decoder_layers[layer].get()});
  }
  return units;
}

} // namespace tieshard

#include "tieshard/runtime/models/decoder_layer.h"

#include <ATen/ATen.h>

#include "tieshard/runtime/models/attention.h"

namespace tieshard {

DecoderAttentionImpl::DecoderAttentionImpl(const DecoderConfig& config,
                                           std::int64_t layer,
                                           const at::TensorOptions& options)
    : layer_(layer),
      heads_(config.num_attention_heads),
      kv_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim),
      rope_(config.layers[static_cast<std::size_t>(layer)].rope),
      scale_(config.attention_scale),
      dropout_(config.attention_dropout),
      softcap_(config.attention_softcap) {
  if (config.sinks) {
    sinks_ = register_parameter("sinks", at::empty({heads_}, options));
  }
  const std::int64_t query = heads_ * head_dim_;
  const std::int64_t key_value = kv_heads_ * head_dim_;
  const auto linear = [&](const char* name, std::int64_t out) {
    return register_module(name, Linear(config.hidden_size, out, config.query_key_value_bias, options));
  };
  const bool fused = config.projections == ProjectionLayout::kFused;
  if (!fused) {
    q_proj_ = linear("q_proj", query);
    k_proj_ = linear("k_proj", key_value);
    v_proj_ = linear("v_proj", key_value);
  }
  o_proj_ = register_module("o_proj", Linear(query, config.hidden_size, config.output_bias, options));
  if (fused) {
    qkv_proj_ = linear("qkv_proj", query + 2 * key_value);
  }
  if (config.query_key_norms) {
    const auto norm = [&] { return RmsNorm(head_dim_, config.rms_norm_eps, options, config.norm_scale); };
    q_norm_ = register_module("q_norm", norm());
    k_norm_ = register_module("k_norm", norm());
  }
}

DecoderAttentionImpl::Heads DecoderAttentionImpl::project(const at::Tensor& x_BTH) {
  const auto split = [&](const at::Tensor& x, std::int64_t heads) {
    return x.reshape({x_BTH.size(0), x_BTH.size(1), heads, head_dim_});
  };
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  if (qkv_proj_.is_empty()) {
    q = split(q_proj_->forward(x_BTH), heads_);
    k = split(k_proj_->forward(x_BTH), kv_heads_);
    v = split(v_proj_->forward(x_BTH), kv_heads_);
  } else {
    const std::int64_t key_value = kv_heads_ * head_dim_;
    const std::vector<at::Tensor> parts =
        qkv_proj_->forward(x_BTH).split_with_sizes({heads_ * head_dim_, key_value, key_value}, -1);
    q = split(parts[0], heads_);
    k = split(parts[1], kv_heads_);
    v = split(parts[2], kv_heads_);
  }
  if (!q_norm_.is_empty()) {
    q = q_norm_->forward(q);
    k = k_norm_->forward(k);
  }
  return {.q_BNTD = q.transpose(1, 2), .k_BKTD = k.transpose(1, 2), .v_BKTD = v.transpose(1, 2)};
}

at::Tensor DecoderAttentionImpl::forward(const at::Tensor& x_BTH, const DecoderPass& pass) {
  auto [q_BNTD, k_BKSD, v_BKSD] = project(x_BTH);
  const RotaryAngles& angles = pass.angles[rope_];
  q_BNTD = apply_rotary(q_BNTD, angles);
  k_BKSD = apply_rotary(k_BKSD, angles);
  if (pass.cache != nullptr) {
    std::tie(k_BKSD, v_BKSD) = pass.cache->append(layer_, k_BKSD, v_BKSD);
  }
  const at::Tensor y_BNTD =
      attend(q_BNTD,
             k_BKSD,
             v_BKSD,
             pass.masks[static_cast<std::size_t>(layer_)],
             {.scale = scale_, .softcap = softcap_, .dropout = is_training() ? dropout_ : 0.0, .sinks = sinks_});
  return o_proj_->forward(y_BNTD.transpose(1, 2).reshape({x_BTH.size(0), x_BTH.size(1), heads_ * head_dim_}));
}

DecoderLayerImpl::DecoderLayerImpl(const DecoderConfig& config, std::int64_t layer, const at::TensorOptions& options) {
  const auto norm = [&](const char* name) {
    return register_module(name, RmsNorm(config.hidden_size, config.rms_norm_eps, options, config.norm_scale));
  };
  self_attn_ = register_module("self_attn", DecoderAttention(config, layer, options));
  if (!config.layers[static_cast<std::size_t>(layer)].experts) {
    mlp_ = register_module("mlp", GatedMlp(config, config.intermediate_size, options));
  } else if (config.experts.value().layout == ExpertLayout::kStackedInterleaved) {
    stacked_moe_ = register_module("mlp", StackedMoe(config, options));
  } else {
    const bool mixtral = config.experts->layout == ExpertLayout::kBlockSparseMoe;
    sparse_moe_ = register_module(mixtral ? "block_sparse_moe" : "mlp", SparseMoe(config, options));
  }
  input_layernorm_ = norm("input_layernorm");
  post_attention_layernorm_ = norm("post_attention_layernorm");
  if (config.branch_norms) {
    pre_feedforward_layernorm_ = norm("pre_feedforward_layernorm");
    post_feedforward_layernorm_ = norm("post_feedforward_layernorm");
  }
}

at::Tensor DecoderLayerImpl::feed_forward(const at::Tensor& x_BTH) {
  if (!mlp_.is_empty()) {
    return mlp_->forward(x_BTH);
  }
  return sparse_moe_.is_empty() ? stacked_moe_->forward(x_BTH) : sparse_moe_->forward(x_BTH);
}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& x_BTH, const DecoderPass& pass) {
  const at::Tensor attended = self_attn_->forward(input_layernorm_->forward(x_BTH), pass);
  if (pre_feedforward_layernorm_.is_empty()) {
    const at::Tensor y_BTH = x_BTH + attended;
    return y_BTH + feed_forward(post_attention_layernorm_->forward(y_BTH));
  }
  const at::Tensor y_BTH = x_BTH + post_attention_layernorm_->forward(attended);
  return y_BTH + post_feedforward_layernorm_->forward(feed_forward(pre_feedforward_layernorm_->forward(y_BTH)));
}

} // namespace tieshard

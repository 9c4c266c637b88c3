#include "tieshard/runtime/models/gpt2.h"

#include <cmath>
#include <tuple>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/models/attention.h"
#include "tieshard/runtime/models/linear_kernel.h"

namespace tieshard {

Conv1dImpl::Conv1dImpl(std::int64_t in, std::int64_t out, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({in, out}, options))),
      bias(register_parameter("bias", at::empty({out}, options))) {}

at::Tensor Conv1dImpl::forward(const at::Tensor& x) const {
  return apply_linear(x, weight.t(), bias);
}

LayerNormImpl::LayerNormImpl(std::int64_t size, double eps, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({size}, options))),
      bias(register_parameter("bias", at::empty({size}, options))),
      eps_(eps) {}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) const {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, eps_);
}

Gpt2AttentionImpl::Gpt2AttentionImpl(const Gpt2Config& config, std::int64_t layer, const at::TensorOptions& options)
    : layer_(layer),
      heads_(config.heads),
      scale_(1.0),
      dropout_(config.attention_dropout),
      residual_dropout_(config.residual_dropout) {
  if (config.scale_attention) {
    scale_ = 1.0 / std::sqrt(static_cast<double>(config.hidden_size / heads_));
  }
  if (config.scale_by_layer) {
    scale_ /= static_cast<double>(layer + 1);
  }
  c_attn_ = register_module("c_attn", Conv1d(config.hidden_size, 3 * config.hidden_size, options));
  c_proj_ = register_module("c_proj", Conv1d(config.hidden_size, config.hidden_size, options));
}

at::Tensor Gpt2AttentionImpl::forward(const at::Tensor& x_BTH, const AttentionMask& mask, KvCache* cache) {
  const std::vector<at::Tensor> parts = c_attn_->forward(x_BTH).chunk(3, -1);
  const auto split = [&](const at::Tensor& x) { return x.reshape({x.size(0), x.size(1), heads_, -1}).transpose(1, 2); };
  at::Tensor k = split(parts[1]);
  at::Tensor v = split(parts[2]);
  if (cache != nullptr) {
    std::tie(k, v) = cache->append(layer_, k, v);
  }
  const at::Tensor y_BNTD =
      attend(split(parts[0]), k, v, mask, {.scale = scale_, .dropout = is_training() ? dropout_ : 0.0});
  const at::Tensor y = c_proj_->forward(y_BNTD.transpose(1, 2).reshape(x_BTH.sizes()));
  return at::dropout(y, residual_dropout_, is_training());
}

Gpt2MlpImpl::Gpt2MlpImpl(const Gpt2Config& config, const at::TensorOptions& options)
    : approximation_(config.tanh_gelu ? "tanh" : "none"), dropout_(config.residual_dropout) {
  c_fc_ = register_module("c_fc", Conv1d(config.hidden_size, config.inner_size, options));
  c_proj_ = register_module("c_proj", Conv1d(config.inner_size, config.hidden_size, options));
}

at::Tensor Gpt2MlpImpl::forward(const at::Tensor& x) {
  return at::dropout(c_proj_->forward(at::gelu(c_fc_->forward(x), approximation_)), dropout_, is_training());
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Config& config, std::int64_t layer, const at::TensorOptions& options) {
  const auto norm = [&] { return LayerNorm(config.hidden_size, config.layer_norm_epsilon, options); };
  ln_1_ = register_module("ln_1", norm());
  attn_ = register_module("attn", Gpt2Attention(config, layer, options));
  ln_2_ = register_module("ln_2", norm());
  mlp_ = register_module("mlp", Gpt2Mlp(config, options));
}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x_BTH, const AttentionMask& mask, KvCache* cache) {
  const at::Tensor y_BTH = x_BTH + attn_->forward(ln_1_->forward(x_BTH), mask, cache);
  return y_BTH + mlp_->forward(ln_2_->forward(y_BTH));
}

Gpt2ModelImpl::Gpt2ModelImpl(const Gpt2Config& config, bool tied, const at::TensorOptions& options) : config_(config) {
  wte = register_module("wte", Embedding(config.vocab_size, config.hidden_size, std::nullopt, options, tied));
  wpe_ = register_module("wpe", Embedding(config.positions, config.hidden_size, std::nullopt, options));
  auto h = register_module("h", torch::nn::ModuleList());
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    blocks.emplace_back(config, layer, options);
    h->push_back(blocks.back());
  }
  ln_f_ = register_module("ln_f", LayerNorm(config.hidden_size, config.layer_norm_epsilon, options));
}

at::Tensor Gpt2ModelImpl::forward(const at::Tensor& ids_BT, const SequenceInfo& info, UnitRunner& runner) {
  const std::int64_t length = ids_BT.size(1);
  const std::int64_t past = info.cache == nullptr ? 0 : info.cache->length();
  if (past + length > config_.positions) {
    throw InputError(
        {.code = Code::kConfigValue,
         .what = "a sequence is longer than the model has positions for",
         .where = "transformer.wpe.weight",
         .why = concat("it has ", config_.positions, " positions, the sequence ", past + length, " tokens"),
         .fix = "use shorter sequences (--seq), or fewer new tokens"});
  }
  const at::Tensor positions = token_positions(length, past, info.documents_BT, ids_BT.device());
  at::Tensor x_BTH = wte->forward(ids_BT) + wpe_->forward(positions.dim() == 1 ? positions.unsqueeze(0) : positions);
  x_BTH = at::dropout(x_BTH, config_.embedding_dropout, is_training());
  const AttentionMask mask = make_attention_mask(
      length, {.past = past, .documents_BT = info.documents_BT, .options = x_BTH.options().requires_grad(false)});
  for (Gpt2Block& block : blocks) {
    x_BTH = runner.run(*block, x_BTH, [block = block.get(), mask, cache = info.cache](const at::Tensor& x) {
      return block->forward(x, mask, cache);
    });
  }
  if (info.cache != nullptr) {
    info.cache->advance(length);
  }
  return ln_f_->forward(x_BTH);
}

Gpt2ForCausalLm::Gpt2ForCausalLm(const Gpt2Config& config, bool tied, const at::TensorOptions& options) {
  transformer_ = register_module("transformer", Gpt2Model(config, tied, options));
  lm_head_ = register_module("lm_head",
                             tied ? Linear(transformer_->wte->weight)
                                  : Linear(config.hidden_size, config.vocab_size, /*with_bias=*/false, options));
}

at::Tensor Gpt2ForCausalLm::hidden_states(const at::Tensor& ids_BT, const SequenceInfo& info) {
  require_decoder_only(info);
  return transformer_->forward(ids_BT, info, *unit_runner());
}

const LinearImpl& Gpt2ForCausalLm::head() const {
  return *lm_head_;
}

std::int64_t Gpt2ForCausalLm::cached_layers() const {
  return static_cast<std::int64_t>(transformer_->blocks.size());
}

std::vector<UnitModule> Gpt2ForCausalLm::units() {
  std::vector<UnitModule> units{{"", this}};
  for (std::size_t layer = 0; layer < transformer_->blocks.size(); ++layer) {
    units.push_back({concat("transformer.h.", layer), transformer_->blocks[layer].get()});
  }
  return units;
}

} // namespace tieshard

#include "tieshard/runtime/models/t5.h"

#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/models/attention.h"
#include "tieshard/runtime/models/t5_positions.h"

namespace tieshard {
namespace {

at::Tensor activate(const at::Tensor& x, T5Activation activation) {
  switch (activation) {
    case T5Activation::kRelu:
      return at::relu(x);
    case T5Activation::kSilu:
      return at::silu(x);
    case T5Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case T5Activation::kGeluErf:
      return at::gelu(x);
  }
  return x;
}

RmsNorm norm_of(const T5Config& config, const at::TensorOptions& options) {
  return RmsNorm(config.model_size, config.layer_norm_epsilon, options);
}

} // namespace

T5AttentionImpl::T5AttentionImpl(const T5Config& config,
                                 bool with_bias,
                                 bool bidirectional,
                                 const at::TensorOptions& options)
    : config_(config), bidirectional_(bidirectional) {
  const std::int64_t inner = config.heads * config.head_size;
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t out) {
    return register_module(name, Linear(in, out, /*with_bias=*/false, options));
  };
  q_ = linear("q", config.model_size, inner);
  k_ = linear("k", config.model_size, inner);
  v_ = linear("v", config.model_size, inner);
  o_ = linear("o", inner, config.model_size);
  if (with_bias) {
    relative_attention_bias_ = register_module("relative_attention_bias",
                                               Embedding(config.position_buckets, config.heads, std::nullopt, options));
  }
}

at::Tensor T5AttentionImpl::forward(const at::Tensor& x_BTH, const at::Tensor& source_BSH, const at::Tensor& bias) {
  const auto split = [&](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), config_.heads, config_.head_size}).transpose(1, 2);
  };
  const at::Tensor y_BNTD = attend(split(q_->forward(x_BTH)),
                                   split(k_->forward(source_BSH)),
                                   split(v_->forward(source_BSH)),
                                   {.bias = bias},
                                   {.dropout = is_training() ? config_.dropout : 0.0});
  return o_->forward(y_BNTD.transpose(1, 2).reshape({x_BTH.size(0), x_BTH.size(1), -1}));
}

at::Tensor T5AttentionImpl::position_bias(std::int64_t length) const {
  const at::Tensor& weight = relative_attention_bias_->weight;
  const at::Tensor buckets =
      t5_position_buckets(length, bidirectional_, config_.position_buckets, config_.position_distance)
          .to(weight.device());
  const at::Tensor bias = relative_attention_bias_->forward(buckets).permute({2, 0, 1}).unsqueeze(0);
  if (bidirectional_) {
    return bias;
  }
  const at::Tensor after = at::ones({length, length}, weight.options().dtype(at::kBool).requires_grad(false)).triu_(1);
  return bias.masked_fill(after, -std::numeric_limits<double>::infinity());
}

T5FeedForwardImpl::T5FeedForwardImpl(const T5Config& config, const at::TensorOptions& options) : config_(config) {
  const auto in = [&](const char* name) {
    return register_module(name, Linear(config.model_size, config.inner_size, /*with_bias=*/false, options));
  };
  wi_ = in(config.gated ? "wi_0" : "wi");
  if (config.gated) {
    wi_1_ = in("wi_1");
  }
  wo_ = register_module("wo", Linear(config.inner_size, config.model_size, /*with_bias=*/false, options));
}

at::Tensor T5FeedForwardImpl::forward(const at::Tensor& x) {
  at::Tensor y = activate(wi_->forward(x), config_.activation);
  if (config_.gated) {
    y = y * wi_1_->forward(x);
  }
  return wo_->forward(at::dropout(y, config_.dropout, is_training()));
}

T5SublayerImpl::T5SublayerImpl(const T5Config& config,
                               const char* name,
                               T5Attention part,
                               const at::TensorOptions& options)
    : attention(register_module(name, std::move(part))),
      layer_norm(register_module("layer_norm", norm_of(config, options))) {}

T5SublayerImpl::T5SublayerImpl(const T5Config& config, T5FeedForward part, const at::TensorOptions& options)
    : feed_forward(register_module("DenseReluDense", std::move(part))),
      layer_norm(register_module("layer_norm", norm_of(config, options))) {}

T5BlockImpl::T5BlockImpl(const T5Config& config, bool first, bool is_decoder, const at::TensorOptions& options)
    : dropout_(config.dropout) {
  layer_.emplace_back(config, "SelfAttention", T5Attention(config, first, !is_decoder, options), options);
  if (is_decoder) {
    layer_.emplace_back(config, "EncDecAttention", T5Attention(config, false, true, options), options);
  }
  layer_.emplace_back(config, T5FeedForward(config, options), options);
  auto list = register_module("layer", torch::nn::ModuleList());
  for (const T5Sublayer& sublayer : layer_) {
    list->push_back(sublayer);
  }
}

at::Tensor T5BlockImpl::add(const at::Tensor& x, const at::Tensor& branch) const {
  return x + at::dropout(branch, dropout_, is_training());
}

std::vector<at::Tensor> T5BlockImpl::forward(const std::vector<at::Tensor>& inputs) {
  at::Tensor x = inputs[0];
  T5Sublayer& self = layer_.front();
  const at::Tensor bias = inputs[1].defined() ? inputs[1] : self->attention->position_bias(x.size(1));
  const at::Tensor normed = self->layer_norm->forward(x);
  x = add(x, self->attention->forward(normed, normed, bias));
  if (layer_.size() == 3) {
    T5Sublayer& cross = layer_[1];
    x = add(x, cross->attention->forward(cross->layer_norm->forward(x), inputs[2], {}));
  }
  T5Sublayer& last = layer_.back();
  return {add(x, last->feed_forward->forward(last->layer_norm->forward(x))), bias};
}

T5StackImpl::T5StackImpl(const T5Config& config,
                         const Embedding& embed,
                         bool is_decoder,
                         const at::TensorOptions& options)
    : dropout_(config.dropout) {
  embed_tokens_ = register_module("embed_tokens", embed);
  auto block = register_module("block", torch::nn::ModuleList());
  const std::int64_t count = is_decoder ? config.decoder_layers : config.encoder_layers;
  for (std::int64_t index = 0; index < count; ++index) {
    blocks.emplace_back(config, index == 0, is_decoder, options);
    block->push_back(blocks.back());
  }
  final_layer_norm_ = register_module("final_layer_norm", norm_of(config, options));
}

at::Tensor T5StackImpl::forward(const at::Tensor& ids_BT, const at::Tensor& encoded, UnitRunner& runner) {
  at::Tensor x_BTH = at::dropout(embed_tokens_->forward(ids_BT), dropout_, is_training());
  at::Tensor bias;
  for (T5Block& block : blocks) {
    const std::vector<at::Tensor> outputs = runner.run_tensors(
        *block, {x_BTH, bias, encoded}, [block = block.get()](const std::vector<at::Tensor>& inputs) {
          return block->forward(inputs);
        });
    x_BTH = outputs[0];
    bias = outputs[1];
  }
  return at::dropout(final_layer_norm_->forward(x_BTH), dropout_, is_training());
}

T5ForConditionalGeneration::T5ForConditionalGeneration(const T5Config& config,
                                                       bool tied,
                                                       const at::TensorOptions& options)
    : config_(config) {
  shared_ = register_module("shared", Embedding(config.vocab_size, config.model_size, std::nullopt, options, tied));
  encoder_ = register_module("encoder", T5Stack(config, shared_, /*is_decoder=*/false, options));
  decoder_ = register_module("decoder", T5Stack(config, shared_, /*is_decoder=*/true, options));
  lm_head_ = register_module(
      "lm_head",
      tied ? Linear(shared_->weight) : Linear(config.model_size, config.vocab_size, /*with_bias=*/false, options));
}

at::Tensor T5ForConditionalGeneration::hidden_states(const at::Tensor& ids_BS, const SequenceInfo& info) {
  if (!info.decoder_ids_BT.defined() || info.documents_BT.defined() || info.cache != nullptr) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a forward of this model cannot take that",
                      .where = info.decoder_ids_BT.defined() ? "documents or a cache" : "no ids for the decoder",
                      .why = "the model is an encoder-decoder",
                      .fix = "give the encoder's tokens as `ids` and the decoder's as SequenceInfo::decoder_ids_BT"});
  }
  const at::Tensor encoded = encoder_->forward(ids_BS, {}, *unit_runner());
  const at::Tensor x_BTH = decoder_->forward(info.decoder_ids_BT, encoded, *unit_runner());
  return config_.scale_head ? x_BTH / std::sqrt(static_cast<double>(config_.model_size)) : x_BTH;
}

const LinearImpl& T5ForConditionalGeneration::head() const {
  return *lm_head_;
}

at::Tensor T5ForConditionalGeneration::decoder_ids_of(const at::Tensor& labels_BT) const {
  const at::Tensor start = at::full({labels_BT.size(0), 1}, config_.decoder_start_id, labels_BT.options());
  const at::Tensor before = labels_BT.narrow(1, 0, labels_BT.size(1) - 1);
  return at::cat({start, before.masked_fill(before == kIgnoredLabel, config_.pad_token_id)}, 1);
}

std::vector<UnitModule> T5ForConditionalGeneration::units() {
  std::vector<UnitModule> units{{"", this}};
  const auto add = [&](const char* stack, std::vector<T5Block>& blocks) {
    for (std::size_t index = 0; index < blocks.size(); ++index) {
      units.push_back({concat(stack, ".block.", index), blocks[index].get()});
    }
  };
  add("encoder", encoder_->blocks);
  add("decoder", decoder_->blocks);
  return units;
}

} // namespace tieshard

#include "tieshard/runtime/models/decoder.h"

#include <map>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"

namespace tieshard {

DecoderModelImpl::DecoderModelImpl(const DecoderConfig& config, bool tied, const at::TensorOptions& options)
    : config_(config) {
  embed_tokens = register_module(
      "embed_tokens", Embedding(config.vocab_size, config.hidden_size, config.pad_token_id, options, /*shared=*/tied));
  auto layers = register_module("layers", torch::nn::ModuleList());
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    decoder_layers.emplace_back(config, static_cast<std::int64_t>(layer), options);
    layers->push_back(decoder_layers.back());
  }
  norm_ = register_module("norm", RmsNorm(config.hidden_size, config.rms_norm_eps, options, config.norm_scale));
  for (const RopeConfig& rope : config.ropes) {
    const std::string name = rotary_.empty() ? "rotary_emb" : concat("rotary_emb_", rotary_.size());
    rotary_.push_back(register_module(name, RotaryEmbedding(config.head_dim, rope)));
  }
}

DecoderPass DecoderModelImpl::begin_pass(const at::Tensor& x_BTH, const SequenceInfo& info) const {
  const std::int64_t length = x_BTH.size(1);
  const std::int64_t past = info.cache == nullptr ? 0 : info.cache->length();
  DecoderPass pass;
  pass.cache = info.cache;
  const at::Tensor positions = token_positions(length, past, info.documents_BT, rotary_.front()->inv_freq.device());
  for (const RotaryEmbedding& rotary : rotary_) {
    pass.angles.push_back(rotary->forward(positions, x_BTH.scalar_type()));
  }
  std::map<std::int64_t, AttentionMask> by_window;
  for (const DecoderLayerConfig& layer : config_.layers) {
    const auto found = by_window.find(layer.window);
    pass.masks.push_back(found != by_window.end()
                             ? found->second
                             : by_window
                                   .emplace(layer.window,
                                            make_attention_mask(length,
                                                                {.past = past,
                                                                 .window = layer.window,
                                                                 .documents_BT = info.documents_BT,
                                                                 .options = x_BTH.options().requires_grad(false)}))
                                   .first->second);
  }
  return pass;
}

at::Tensor DecoderModelImpl::forward(const at::Tensor& ids_BT, const SequenceInfo& info, UnitRunner& runner) {
  at::Tensor x_BTH = embed_tokens->forward(ids_BT);
  if (config_.embedding_scale != 1.0) {
    x_BTH = x_BTH * at::full({}, config_.embedding_scale, x_BTH.options().requires_grad(false));
  }
  // Shared, since a layer runs again in the backward pass with activation checkpointing.
  const auto pass = std::make_shared<const DecoderPass>(begin_pass(x_BTH, info));
  for (DecoderLayer& layer : decoder_layers) {
    x_BTH = runner.run(
        *layer, x_BTH, [layer = layer.get(), pass](const at::Tensor& x) { return layer->forward(x, *pass); });
  }
  if (info.cache != nullptr) {
    info.cache->advance(ids_BT.size(1));
  }
  return norm_->forward(x_BTH);
}

DecoderForCausalLm::DecoderForCausalLm(const DecoderConfig& config, bool tied, const at::TensorOptions& options)
    : logits_softcap_(config.logits_softcap) {
  model_ = register_module("model", DecoderModel(config, tied, options));
  lm_head_ = register_module("lm_head",
                             tied ? Linear(model_->embed_tokens->weight)
                                  : Linear(config.hidden_size, config.vocab_size, /*with_bias=*/false, options));
}

at::Tensor DecoderForCausalLm::hidden_states(const at::Tensor& ids_BT, const SequenceInfo& info) {
  require_decoder_only(info);
  return model_->forward(ids_BT, info, *unit_runner());
}

const LinearImpl& DecoderForCausalLm::head() const {
  return *lm_head_;
}

std::int64_t DecoderForCausalLm::cached_layers() const {
  return static_cast<std::int64_t>(model_->decoder_layers.size());
}

std::vector<UnitModule> DecoderForCausalLm::units() {
  std::vector<UnitModule> units{{"", this}};
  for (std::size_t layer = 0; layer < model_->decoder_layers.size(); ++layer) {
    units.push_back({concat("model.layers.", layer), model_->decoder_layers[layer].get()});
  }
  return units;
}

} // namespace tieshard

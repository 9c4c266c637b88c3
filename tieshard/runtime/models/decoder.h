// tieshard/runtime/models/decoder.h
//
// The gated decoders as pure single-device modules: Llama, Mistral, Qwen, Gemma, Phi-3, Mixtral and GPT-OSS are one
// module with other numbers. Submodule names are the Hugging Face names, so parameter names are too.
//
// Flow:   core/families/decoder_config.h -> [this] -> make_model
// Source: transformers 5.24 modeling files of these families.
//
// Shape suffixes: B batch, T sequence, H hidden, V vocab.

#pragma once

#include "tieshard/core/families/decoder_config.h"
#include "tieshard/runtime/models/decoder_layer.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// Embedding, decoder layers and final norm (`model.` of the checkpoint).
class DecoderModelImpl : public torch::nn::Module {
 public:
  /// @param tied  the head uses the embedding too
  DecoderModelImpl(const DecoderConfig& config, bool tied, const at::TensorOptions& options);

  /// ids int64 [B, T] -> hidden states [B, T, H]; each layer runs through `runner`.
  at::Tensor forward(const at::Tensor& ids_BT, const SequenceInfo& info, UnitRunner& runner);

  Embedding embed_tokens{nullptr};
  std::vector<DecoderLayer> decoder_layers;

 private:
  DecoderPass begin_pass(const at::Tensor& x_BTH, const SequenceInfo& info) const;

  DecoderConfig config_;
  RmsNorm norm_{nullptr};
  std::vector<RotaryEmbedding> rotary_; ///< as DecoderConfig::ropes
};
TORCH_MODULE(DecoderModel);

class DecoderForCausalLm : public LanguageModel {
 public:
  /// @param tied  the head is the embedding: one tensor under two names
  DecoderForCausalLm(const DecoderConfig& config, bool tied, const at::TensorOptions& options);

  std::vector<UnitModule> units() override;
  std::int64_t cached_layers() const override;

 protected:
  at::Tensor hidden_states(const at::Tensor& ids_BT, const SequenceInfo& info) override;
  const LinearImpl& head() const override;
  double logits_softcap() const override {
    return logits_softcap_;
  }

 private:
  double logits_softcap_;
  DecoderModel model_{nullptr};
  Linear lm_head_{nullptr};
};

} // namespace tieshard

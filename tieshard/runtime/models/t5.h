// tieshard/runtime/models/t5.h
//
// T5 as pure single-device modules: an encoder and a decoder over one embedding, which is the head too where they are
// tied, and position biases that the first block of a stack holds for all.
//
// Flow:   core/families/t5.h -> [this] -> make_model
// Source: transformers 5.24 modeling_t5.py; Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
//         Text-to-Text Transformer".
//
// Shape suffixes: B batch, S encoder tokens, T tokens of this stack, N heads, D head size, H hidden.

#pragma once

#include <vector>

#include <torch/nn/modules/container/modulelist.h>

#include "tieshard/core/families/t5.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

class T5AttentionImpl : public torch::nn::Module {
 public:
  /// @param with_bias  holds the position biases of its stack
  T5AttentionImpl(const T5Config& config, bool with_bias, bool bidirectional, const at::TensorOptions& options);

  /// x [B, T, H] attends to `source` [B, S, H] (itself, or what the encoder gave) -> [B, T, H]
  /// @param bias  added to the scores, [1, N, T, S]; undefined: none
  at::Tensor forward(const at::Tensor& x_BTH, const at::Tensor& source_BSH, const at::Tensor& bias);

  /// The biases of `length` tokens on each other, [1, N, T, T]; of a decoder with the causal mask in it.
  at::Tensor position_bias(std::int64_t length) const;

 private:
  T5Config config_;
  bool bidirectional_;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  Embedding relative_attention_bias_{nullptr}; ///< [buckets, N]
};
TORCH_MODULE(T5Attention);

/// relu(x wi) wo, or act(x wi_0) * (x wi_1) wo.
class T5FeedForwardImpl : public torch::nn::Module {
 public:
  T5FeedForwardImpl(const T5Config& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  T5Config config_;
  Linear wi_{nullptr}, wi_1_{nullptr}, wo_{nullptr};
};
TORCH_MODULE(T5FeedForward);

/// One entry of a block's `layer` list: a norm, and one of the three parts.
class T5SublayerImpl : public torch::nn::Module {
 public:
  T5SublayerImpl(const T5Config& config, const char* name, T5Attention attention, const at::TensorOptions& options);
  T5SublayerImpl(const T5Config& config, T5FeedForward feed_forward, const at::TensorOptions& options);

  T5Attention attention{nullptr};
  T5FeedForward feed_forward{nullptr};
  RmsNorm layer_norm{nullptr};
};
TORCH_MODULE(T5Sublayer);

class T5BlockImpl : public torch::nn::Module {
 public:
  T5BlockImpl(const T5Config& config, bool first, bool is_decoder, const at::TensorOptions& options);

  /// {x [B, T, H], the stack's biases (undefined in the first block, which makes them), what the encoder gave [B, S, H]
  /// (of a decoder)} -> {x, the biases}
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

 private:
  at::Tensor add(const at::Tensor& x, const at::Tensor& branch) const;

  double dropout_;
  std::vector<T5Sublayer> layer_;
};
TORCH_MODULE(T5Block);

class T5StackImpl : public torch::nn::Module {
 public:
  /// @param embed  the module of the shared embedding
  T5StackImpl(const T5Config& config, const Embedding& embed, bool is_decoder, const at::TensorOptions& options);

  /// ids int64 [B, T] -> [B, T, H]. @param encoded  of a decoder, [B, S, H]
  at::Tensor forward(const at::Tensor& ids_BT, const at::Tensor& encoded, UnitRunner& runner);

  std::vector<T5Block> blocks;

 private:
  double dropout_;
  Embedding embed_tokens_{nullptr};
  RmsNorm final_layer_norm_{nullptr};
};
TORCH_MODULE(T5Stack);

class T5ForConditionalGeneration : public LanguageModel {
 public:
  /// @param tied  the head is the embedding: one tensor under four names
  T5ForConditionalGeneration(const T5Config& config, bool tied, const at::TensorOptions& options);

  bool predicts_next() const override {
    return false;
  }
  std::vector<UnitModule> units() override;
  at::Tensor decoder_ids_of(const at::Tensor& labels_BT) const override;

 protected:
  at::Tensor hidden_states(const at::Tensor& ids_BS, const SequenceInfo& info) override;
  const LinearImpl& head() const override;

 private:
  T5Config config_;
  Embedding shared_{nullptr};
  T5Stack encoder_{nullptr}, decoder_{nullptr};
  Linear lm_head_{nullptr};
};

} // namespace tieshard

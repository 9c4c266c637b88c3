// tests/support/tied_module.h
//
// A user's own LibTorch module with tied ends, as the write-ups' TinyTiedLM: it knows nothing of tieshard.

#pragma once

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard::testing {

/// A head whose weight is another module's. Assigning `linear->weight = embedding->weight` would not do: LibTorch would
/// go on listing the linear's first weight.
class TiedHead : public torch::nn::Module {
 public:
  explicit TiedHead(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor forward(const at::Tensor& x) const {
    return at::linear(x, weight);
  }

  at::Tensor weight;
};

class TiedModule : public torch::nn::Module {
 public:
  TiedModule(std::int64_t vocab, std::int64_t hidden) {
    embed_tokens = register_module("embed_tokens", torch::nn::Embedding(vocab, hidden));
    body = register_module("body", torch::nn::Linear(hidden, hidden));
    lm_head = register_module("lm_head", std::make_shared<TiedHead>(embed_tokens->weight));
    validate_shared_object(*this);
  }

  /// ids [B, T] -> logits [B, T, V]
  at::Tensor forward(const at::Tensor& ids) {
    return lm_head->forward(at::tanh(body->forward(embed_tokens->forward(ids))));
  }

  /// What a user adds to a finished model: an adapter pair on `body`.
  void add_adapter(std::int64_t rank) {
    const std::int64_t hidden = body->weight.size(0);
    body->register_parameter("lora_A", at::randn({rank, hidden}));
    body->register_parameter("lora_B", at::zeros({hidden, rank}));
  }

  /// A second, separate head.
  void add_value_head() {
    value_head = register_module("value_head", torch::nn::Linear(body->weight.size(0), 1));
  }

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::Linear body{nullptr}, value_head{nullptr};
  std::shared_ptr<TiedHead> lm_head;
};

} // namespace tieshard::testing

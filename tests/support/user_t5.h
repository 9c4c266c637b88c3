// tests/support/user_t5.h
//
// A user's encoder-decoder of T5's shape: one matrix under four names, decoder layers that take two tensors with
// gradients. The classes know nothing of tieshard; only the training code at the end does.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "tieshard/runtime/models/unit_runner.h"

namespace tieshard::testing {

/// A matrix of somebody else's.
class Borrowed : public torch::nn::Module {
 public:
  explicit Borrowed(const at::Tensor& matrix) : weight(register_parameter("weight", matrix)) {}
  at::Tensor weight;
};

class UserEncoderLayerImpl : public torch::nn::Module {
 public:
  explicit UserEncoderLayerImpl(std::int64_t hidden) {
    mix = register_module("mix", torch::nn::Linear(hidden, hidden));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + mix->forward(x).tanh();
  }
  torch::nn::Linear mix{nullptr};
};
TORCH_MODULE(UserEncoderLayer);

class UserDecoderLayerImpl : public torch::nn::Module {
 public:
  explicit UserDecoderLayerImpl(std::int64_t hidden) {
    own = register_module("own", torch::nn::Linear(hidden, hidden));
    cross = register_module("cross", torch::nn::Linear(hidden, hidden));
  }
  /// @returns the next hidden state, and how far it attended
  std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& encoded) {
    const at::Tensor attended = cross->forward(encoded).mean(1, /*keepdim=*/true);
    return {x + own->forward(x).tanh() + attended, attended.square().mean()};
  }
  torch::nn::Linear own{nullptr}, cross{nullptr};
};
TORCH_MODULE(UserDecoderLayer);

template <typename Layer>
class UserStack : public torch::nn::Module {
 public:
  UserStack(const at::Tensor& matrix, std::int64_t hidden) {
    embed_tokens = register_module("embed_tokens", std::make_shared<Borrowed>(matrix));
    block = register_module("block", torch::nn::ModuleList());
    for (int layer = 0; layer < 2; ++layer) {
      layers.emplace_back(hidden);
      block->push_back(layers.back());
    }
  }
  std::shared_ptr<Borrowed> embed_tokens;
  torch::nn::ModuleList block{nullptr};
  std::vector<Layer> layers;
};

/// The same weights whenever it is made.
class UserT5 : public torch::nn::Module {
 public:
  explicit UserT5(std::int64_t vocab = 11, std::int64_t hidden = 6) {
    torch::manual_seed(5);
    shared = register_module("shared", std::make_shared<Borrowed>(at::randn({vocab, hidden}) * 0.3));
    encoder = register_module("encoder", std::make_shared<UserStack<UserEncoderLayer>>(shared->weight, hidden));
    decoder = register_module("decoder", std::make_shared<UserStack<UserDecoderLayer>>(shared->weight, hidden));
    lm_head = register_module("lm_head", std::make_shared<Borrowed>(shared->weight));
  }

  std::shared_ptr<Borrowed> shared, lm_head;
  std::shared_ptr<UserStack<UserEncoderLayer>> encoder;
  std::shared_ptr<UserStack<UserDecoderLayer>> decoder;
};

/// Training code: the forward, written out with a run around each unit. Loss of predicting the ids themselves.
inline at::Tensor user_t5_loss(UserT5& model, const at::Tensor& ids, UnitRunner& runner) {
  return runner.run(model, ids, [&](const at::Tensor& tokens) {
    at::Tensor encoded = at::embedding(model.encoder->embed_tokens->weight, tokens);
    for (UserEncoderLayer& layer : model.encoder->layers) {
      encoded = runner.run(*layer, encoded, [&](const at::Tensor& x) { return layer->forward(x); });
    }
    at::Tensor hidden = at::embedding(model.decoder->embed_tokens->weight, tokens.roll(1, 1));
    at::Tensor extra = at::zeros({}, hidden.options());
    for (UserDecoderLayer& layer : model.decoder->layers) {
      const std::vector<at::Tensor> outputs =
          runner.run_tensors(*layer, {hidden, encoded}, [&](const std::vector<at::Tensor>& inputs) {
            return layer->forward(inputs[0], inputs[1]);
          });
      hidden = outputs[0];
      extra = extra + outputs[1];
    }
    const at::Tensor logits = at::linear(hidden, model.lm_head->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), tokens.flatten()) + 0.1 * extra;
  });
}

/// ids [2, 5] of `rank`.
inline at::Tensor user_t5_ids(std::int64_t rank, std::int64_t vocab = 11) {
  return ((at::arange(10, at::kLong) * (rank + 2) + rank) % vocab).view({2, 5});
}

} // namespace tieshard::testing

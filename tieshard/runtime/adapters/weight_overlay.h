// tieshard/runtime/adapters/weight_overlay.h
//
// Adapters on LibTorch's own Linear and Embedding, whose forward nobody can add to: while a forward runs, their weight
// is W + scaling * B A.
//
// Flow:   add_lora -> [this] <- the forward of a module of the user's own
// Source: the weight reparametrisation of torch.nn.utils.parametrize.
//
// Note: [Cost] The sum is as large as the weight, and so is its gradient, until the backward is through. tieshard's own
//       Linear and Embedding need neither.

#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tieshard {

/// What add_lora leaves in such a layer, as a child without parameters.
class OverlayMark : public torch::nn::Module {
 public:
  explicit OverlayMark(double scaling_) : scaling(scaling_) {}
  double scaling;
};

/// Name of that child.
inline constexpr const char* kOverlayMark = "lora";

/// Sets the weights of all adapted layers of LibTorch's inside `unit` and takes them back when it goes. One for each
/// forward, in the function that FsdpState::run calls, so that W, A and B are whole:
///
///   state->run(*block, x, [&](const at::Tensor& y) {
///     const WeightOverlay adapters(*block);
///     return block->forward(y);
///   });
class WeightOverlay {
 public:
  /// @throws c10::Error for A and B that do not fit; all weights are as they were then
  explicit WeightOverlay(torch::nn::Module& unit);
  WeightOverlay(const WeightOverlay&) = delete;
  WeightOverlay& operator=(const WeightOverlay&) = delete;

 private:
  struct Replaced {
    at::Tensor* member = nullptr;
    at::Tensor parameter;
  };
  struct ReplacedWeights { ///< taken back also when the constructor fails half-way
    ~ReplacedWeights();
    std::vector<Replaced> all;
  };
  ReplacedWeights replaced_;
};

} // namespace tieshard

// tieshard/runtime/optim/optimizer_state.h
//
// The tensors that an optimizer keeps for a parameter: LibTorch has a class for each optimizer and no common view.
//
// Flow:   optimizer_guard -> [this]
// Source: torch/optim/{adam,adamw,adagrad,rmsprop,sgd}.h.

#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace tieshard {

/// What the state of an optimizer outside LibTorch derives from beside OptimizerParamState, so that it can be cut with
/// its parameter.
class MomentState {
 public:
  virtual ~MomentState() = default;
  /// Its defined tensors that are shaped as the parameter; the optimizer's own, not copies.
  virtual std::vector<at::Tensor> moments() const = 0;
};

/// The defined tensors of `state` that are shaped as their parameter: moments, sums, momentum buffers. Nothing for a
/// class that is neither one of LibTorch's Adam, AdamW, SGD, RMSprop and Adagrad nor a MomentState (LBFGS, whose state
/// is flat, is none).
std::optional<std::vector<at::Tensor>> moments(const torch::optim::OptimizerParamState& state);

} // namespace tieshard

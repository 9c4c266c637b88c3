// tieshard/runtime/optim/optimizer_state.h
//
// The tensors that an optimizer keeps for a parameter: LibTorch has a class for each optimizer and no common view.
//
// Flow:   optimizer_guard -> [this]
// Source: torch/optim/{adam,adamw,adagrad,rmsprop,sgd}.h.

#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace tieshard {

/// The defined tensors of `state` that are shaped as their parameter: moments, sums, momentum buffers. Empty for an
/// optimizer that is not one of LibTorch's own (and for LBFGS, whose state is flat).
std::vector<at::Tensor> moments(const torch::optim::OptimizerParamState& state);

} // namespace tieshard

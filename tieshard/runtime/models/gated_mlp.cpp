#include "tieshard/runtime/models/gated_mlp.h"

#include <ATen/ATen.h>

#include "tieshard/runtime/models/lean_functions.h"

namespace tieshard {

GatedMlpImpl::GatedMlpImpl(const DecoderConfig& config,
                           std::int64_t intermediate,
                           const at::TensorOptions& options,
                           const GatedMlpNames& names)
    : activation_(config.activation) {
  const auto linear = [&](std::int64_t in, std::int64_t out) { return Linear(in, out, config.mlp_bias, options); };
  if (config.projections == ProjectionLayout::kFused) {
    up_ = register_module("gate_up_proj", linear(config.hidden_size, 2 * intermediate));
  } else {
    gate_ = register_module(names.gate, linear(config.hidden_size, intermediate));
    up_ = register_module(names.up, linear(config.hidden_size, intermediate));
  }
  down_ = register_module(names.down, linear(intermediate, config.hidden_size));
}

at::Tensor GatedMlpImpl::forward(const at::Tensor& x) {
  if (!gate_.is_empty()) {
    return down_->forward(activated_times(gate_->forward(x), up_->forward(x), activation_));
  }
  const std::vector<at::Tensor> both = up_->forward(x).chunk(2, -1);
  return down_->forward(activated_times(both[0], both[1], activation_));
}

} // namespace tieshard

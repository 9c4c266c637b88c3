// tieshard/runtime/optim/fused_adamw.h
//
// AdamW in one pass over each shard, where LibTorch's makes a dozen and as many temporary tensors.
//
// Flow:   optimizer_guard -> [this]
// Source: Loshchilov and Hutter, "Decoupled weight decay regularization"; torch.optim.AdamW(fused=True).

#pragma once

#include <torch/optim/adamw.h>

namespace tieshard {

/// The options, the state and (to rounding) the numbers of torch::optim::AdamW: one can continue where the other
/// stopped. Parameters and moments are float32, float64, bfloat16 or float16; moments have the parameter's dtype.
class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;

  /// Parameters without a gradient are left as they are. @throws c10::Error for sparse gradients
  at::Tensor step(LossClosure closure = nullptr) override;
};

} // namespace tieshard

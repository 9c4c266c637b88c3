// tieshard/runtime/optim/fused_adamw.h
//
// AdamW in one pass over each shard, where LibTorch's makes a dozen and as many temporary tensors.
//
// Flow:   optimizer_guard -> [this] -> update_queue
// Source: Loshchilov and Hutter, "Decoupled weight decay regularization"; torch.optim.AdamW(fused=True).

#pragma once

#include <utility>
#include <vector>

#include <torch/optim/adamw.h>

#include "tieshard/runtime/optim/bf16_options.h"
#include "tieshard/runtime/optim/bf16_state.h"

namespace tieshard {

/// The options, the state and (to rounding) the numbers of torch::optim::AdamW: one can continue where the other
/// stopped. Moments are float32 for float32 and bfloat16 parameters, and else have the parameter's dtype.
class FusedAdamW : public torch::optim::AdamW {
 public:
  using State = WithBf16State<torch::optim::AdamWParamState>;

  using AdamW::AdamW;
  FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
             const torch::optim::AdamWOptions& defaults,
             Bf16Options bf16)
      : AdamW(groups, defaults), bf16_(std::move(bf16)) {}

  /// Parameters without a gradient are left as they are. Float32 and bfloat16 on the host take this project's own
  /// arithmetic (the same bits on every processor), all others LibTorch's fused kernels.
  /// @throws c10::Error for sparse gradients; UsageError device-unavailable for stochastic rounding off the host
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  Bf16Options bf16_;
};

} // namespace tieshard

// tieshard/runtime/optim/fused_sgd.h
//
// SGD, with momentum or without, in one pass over each shard.
//
// Flow:   optimizer_guard -> [this] -> update_queue
// Source: torch.optim.SGD(fused=True); Sutskever et al., "On the importance of initialization and momentum".

#pragma once

#include <utility>
#include <vector>

#include <torch/optim/sgd.h>

#include "tieshard/runtime/optim/bf16_options.h"
#include "tieshard/runtime/optim/bf16_state.h"

namespace tieshard {

/// The options, the state and (to rounding) the numbers of torch::optim::SGD: one can continue where the other stopped.
/// Weight decay is added to the gradient. The momentum buffer is float32 for float32 and bfloat16 parameters, and else
/// has the parameter's dtype.
class FusedSgd : public torch::optim::SGD {
 public:
  using State = WithBf16State<torch::optim::SGDParamState>;

  using SGD::SGD;
  FusedSgd(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const torch::optim::SGDOptions& defaults,
           Bf16Options bf16)
      : SGD(groups, defaults), bf16_(std::move(bf16)) {}

  /// Parameters without a gradient are left as they are. Float32 and bfloat16 on the host are stepped in one pass,
  /// everything else by LibTorch's operators.
  /// @throws c10::Error for sparse gradients; UsageError device-unavailable for stochastic rounding off the host
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  Bf16Options bf16_;
};

} // namespace tieshard

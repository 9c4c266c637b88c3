// tieshard/runtime/models/unit_runner.h
//
// The one place where something may happen around a part of a model. Models call it for each decoder layer and for
// themselves; the default calls through. fsdp installs its own (unshard before, reshard after), so models know nothing
// of sharding. LibTorch has no module hooks; this is the explicit call in their stead.
//
// Flow: models -> [this] <- fsdp

#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tieshard {

class UnitRunner {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  using TensorsForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  virtual ~UnitRunner() = default;

  /// Runs `forward(input)` as the forward of `unit`. `input` must be the only tensor through which gradients leave the
  /// unit towards what came before it; constants may be captured. A runner may keep `forward` and call it again in the
  /// backward pass: what it captures by reference has to live until then.
  virtual at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) {
    (void)unit;
    return forward(input);
  }

  /// The same for a unit with several inputs or outputs: a decoder layer that takes the encoder's output too. Every
  /// tensor through which gradients leave the unit must be one of `inputs`. A tensor may be undefined, and may be of
  /// any dtype.
  virtual std::vector<at::Tensor> run_tensors(torch::nn::Module& unit,
                                              const std::vector<at::Tensor>& inputs,
                                              const TensorsForward& forward) {
    (void)unit;
    return forward(inputs);
  }
};

} // namespace tieshard

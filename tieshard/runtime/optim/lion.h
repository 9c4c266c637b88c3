// tieshard/runtime/optim/lion.h
//
// Lion: steps of one size along the sign of a mean of gradients. One moment, half of AdamW's state.
//
// Flow:   optimizer_guard -> [this] -> update_queue
// Source: Chen et al., "Symbolic discovery of optimization algorithms", Algorithm 2 (decoupled weight decay).

#pragma once

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include "tieshard/runtime/optim/bf16_options.h"
#include "tieshard/runtime/optim/bf16_state.h"

namespace tieshard {

/// Learning rates are mostly a third to a tenth of AdamW's, weight decays as many times larger.
struct LionOptions : public torch::optim::OptimizerCloneableOptions<LionOptions> {
  LionOptions(double lr = 1e-4);
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr) = 1e-4;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double lr) override;
};

struct LionParamState : public torch::optim::OptimizerCloneableParamState<LionParamState> {
  TORCH_ARG(at::Tensor, exp_avg);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

class Lion : public torch::optim::Optimizer {
 public:
  using State = WithBf16State<LionParamState>;

  /// A group with options of its own keeps them all. (LibTorch merges a group's options with the defaults, but knows
  /// its own classes only.) @throws c10::Error for a negative rate or decay, or a beta outside [0, 1)
  explicit Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const LionOptions& defaults = {},
                Bf16Options bf16 = {});
  explicit Lion(std::vector<at::Tensor> parameters, const LionOptions& defaults = {})
      : Lion(std::vector{torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  /// Parameters without a gradient are left as they are. Float32 and bfloat16 on the host are stepped in one pass,
  /// everything else by LibTorch's operators. The mean is float32 for both, and else has the parameter's dtype.
  /// @throws c10::Error for sparse gradients; UsageError device-unavailable for stochastic rounding off the host
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  Bf16Options bf16_;
};

} // namespace tieshard

#include "tieshard/runtime/optim/lion.h"

#include <ATen/ATen.h>
#include <torch/optim/serialize.h>

#include "tieshard/runtime/optim/update_queue.h"

namespace tieshard {
namespace {

LionUpdate update_of(const LionOptions& options) {
  const auto [beta1, beta2] = options.betas();
  return {.lr = static_cast<float>(options.lr()),
          .decay = static_cast<float>(1.0 - options.lr() * options.weight_decay()),
          .beta1 = static_cast<float>(beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - beta2)};
}

/// The same with LibTorch's operators, for every device and dtype.
void step_with_libtorch(const LionOptions& options, at::Tensor parameter, const at::Tensor& gradient, at::Tensor mean) {
  const auto [beta1, beta2] = options.betas();
  const at::Tensor blend = mean.mul(beta1).add_(gradient, 1.0 - beta1);
  const at::Tensor direction = at::where(blend.isnan(), blend, blend.sign()); // sign() makes 0 of NaN
  parameter.mul_(1.0 - options.lr() * options.weight_decay()).add_(direction, -options.lr());
  mean.mul_(beta2).add_(gradient, 1.0 - beta2);
}

void check(const LionOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK(options.lr() >= 0, "Invalid learning rate: ", options.lr());
  TORCH_CHECK(options.weight_decay() >= 0, "Invalid weight_decay value: ", options.weight_decay());
  TORCH_CHECK(0 <= beta1 && beta1 < 1 && 0 <= beta2 && beta2 < 1, "Invalid betas: ", beta1, ", ", beta2);
}

} // namespace

LionOptions::LionOptions(double lr) : lr_(lr) {}

void LionOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

void LionOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

double LionOptions::get_lr() const {
  return lr();
}

void LionOptions::set_lr(double new_lr) {
  lr(new_lr);
}

void LionParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_avg);
}

void LionParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
}

Lion::Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups, const LionOptions& defaults, Bf16Options bf16)
    : Optimizer(groups, std::make_unique<LionOptions>(defaults)), bf16_(std::move(bf16)) {
  check(defaults);
  for (std::size_t index = 0; index < groups.size(); ++index) {
    if (groups[index].has_options()) {
      const auto& own = static_cast<const LionOptions&>(groups[index].options());
      check(own);
      param_groups_[index].set_options(std::make_unique<LionOptions>(own));
    }
  }
}

at::Tensor Lion::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  UpdateQueue queue(bf16_);
  std::uint64_t slot = 0;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const LionOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      const std::uint64_t number = slot++;
      if (!parameter.grad().defined()) {
        continue;
      }
      State& state = State::in(state_[parameter.unsafeGetTensorImpl()]);
      if (!state.exp_avg().defined()) {
        state.exp_avg(at::zeros_like(parameter.detach(), moment_dtype(parameter)));
      }
      if (UpdateQueue::takes(parameter)) {
        queue.add(update_of(options), {parameter, parameter.grad(), {state.exp_avg()}}, state, number);
        continue;
      }
      step_widened(parameter, state, bf16_, [&](const at::Tensor& stepped, const at::Tensor& gradient) {
        step_with_libtorch(options, stepped, gradient, state.exp_avg());
      });
    }
  }
  queue.run();
  return loss;
}

void Lion::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<State, LionOptions>(archive, *this);
}

void Lion::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<State, LionOptions>(archive, *this);
}

} // namespace tieshard

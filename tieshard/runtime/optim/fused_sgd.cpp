#include "tieshard/runtime/optim/fused_sgd.h"

#include <ATen/ATen.h>

#include "tieshard/runtime/optim/update_queue.h"

namespace tieshard {
namespace {

using torch::optim::SGDOptions;

/// @param first  whether the momentum buffer is new
SgdUpdate update_of(const SGDOptions& options, bool first) {
  return {.lr = static_cast<float>(options.lr()),
          .weight_decay = static_cast<float>(options.weight_decay()),
          .momentum = static_cast<float>(options.momentum()),
          .taken = first ? 1.0F : static_cast<float>(1.0 - options.dampening()),
          .nesterov = options.nesterov()};
}

/// The same with LibTorch's operators, for every device and dtype.
void step_with_libtorch(
    const SGDOptions& options, bool first, at::Tensor parameter, const at::Tensor& gradient, at::Tensor buffer) {
  at::Tensor slope = gradient;
  if (options.weight_decay() != 0) {
    slope = slope.add(parameter, options.weight_decay());
  }
  if (options.momentum() != 0) {
    buffer.mul_(options.momentum()).add_(slope, first ? 1.0 : 1.0 - options.dampening());
    slope = options.nesterov() ? slope.add(buffer, options.momentum()) : buffer;
  }
  parameter.add_(slope, -options.lr());
}

} // namespace

at::Tensor FusedSgd::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  UpdateQueue queue(bf16_);
  std::uint64_t slot = 0;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      const std::uint64_t number = slot++;
      if (!parameter.grad().defined()) {
        continue;
      }
      // As with LibTorch's, plain SGD leaves no state behind.
      const bool keeps = options.momentum() != 0 || parameter.scalar_type() == at::kBFloat16;
      State none;
      State& state = keeps ? State::in(state_[parameter.unsafeGetTensorImpl()]) : none;
      const bool first = !state.momentum_buffer().defined();
      StepTensors tensors{parameter, parameter.grad(), {}};
      if (options.momentum() != 0) {
        state.momentum_buffer(first ? at::zeros_like(parameter.detach(), moment_dtype(parameter))
                                    : as_moment(state.momentum_buffer(), parameter));
        tensors.moments.push_back(state.momentum_buffer());
      }
      if (UpdateQueue::takes(parameter)) {
        queue.add(update_of(options, first), tensors, state, number);
        continue;
      }
      step_widened(parameter, state, bf16_, [&](const at::Tensor& stepped, const at::Tensor& gradient) {
        step_with_libtorch(options, first, stepped, gradient, state.momentum_buffer());
      });
    }
  }
  queue.run();
  return loss;
}

void FusedSgd::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<State, SGDOptions>(archive, *this);
}

void FusedSgd::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<State, SGDOptions>(archive, *this);
}

} // namespace tieshard

#include "tieshard/runtime/optim/fused_adamw.h"

#include <map>
#include <string>

#include <ATen/ATen.h>

#include "tieshard/runtime/optim/update_queue.h"

namespace tieshard {
namespace {

using torch::optim::AdamWOptions;

/// What LibTorch's kernel takes of one parameter group: tensors of one device, and there of one dtype.
struct Slots {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> squares;
  std::vector<at::Tensor> largest_squares;                 ///< with amsgrad only
  std::vector<at::Tensor> steps;                           ///< float32 [1], on the same device
  std::vector<std::pair<at::Tensor, at::Tensor>> narrowed; ///< a bfloat16 parameter and the float32 one that is stepped
};

using SlotsByKind = std::map<std::pair<std::string, at::ScalarType>, Slots>;

at::Tensor moment_like(const at::Tensor& parameter) {
  return at::zeros_like(parameter.detach(), moment_dtype(parameter));
}

/// The moments of the parameter as the kernels want them, made when it is stepped for the first time.
void prepare(FusedAdamW::State& state, const at::Tensor& parameter, bool amsgrad) {
  if (!state.exp_avg().defined()) {
    state.exp_avg(moment_like(parameter));
    state.exp_avg_sq(moment_like(parameter));
  }
  if (amsgrad && !state.max_exp_avg_sq().defined()) {
    state.max_exp_avg_sq(moment_like(parameter));
  }
  state.exp_avg(as_moment(state.exp_avg(), parameter));
  state.exp_avg_sq(as_moment(state.exp_avg_sq(), parameter));
  state.max_exp_avg_sq(as_moment(state.max_exp_avg_sq(), parameter));
}

void add(SlotsByKind& by_kind,
         const at::Tensor& parameter,
         FusedAdamW::State& state,
         const AdamWOptions& options,
         const Bf16Options& bf16) {
  at::Tensor stepped = parameter;
  if (parameter.scalar_type() == at::kBFloat16) {
    stepped = widened(parameter, state, bf16);
  }
  Slots& slots = by_kind[{stepped.device().str(), stepped.scalar_type()}];
  if (!stepped.is_same(parameter)) {
    slots.narrowed.emplace_back(parameter, stepped);
  }
  slots.parameters.push_back(stepped);
  slots.gradients.push_back(parameter.grad().to(stepped.scalar_type()));
  slots.means.push_back(state.exp_avg());
  slots.squares.push_back(state.exp_avg_sq());
  if (options.amsgrad()) {
    slots.largest_squares.push_back(state.max_exp_avg_sq());
  }
  slots.steps.push_back(
      at::full({1}, static_cast<double>(state.step()), stepped.options().dtype(at::kFloat).requires_grad(false)));
}

void step_with_libtorch(const SlotsByKind& by_kind, const AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  for (const auto& [kind, slots] : by_kind) {
    at::_fused_adamw_(slots.parameters,
                      slots.gradients,
                      slots.means,
                      slots.squares,
                      slots.largest_squares,
                      slots.steps,
                      options.lr(),
                      beta1,
                      beta2,
                      options.weight_decay(),
                      options.eps(),
                      options.amsgrad(),
                      /*maximize=*/false);
    for (const auto& [parameter, stepped] : slots.narrowed) {
      at::Tensor target = parameter;
      target.copy_(stepped);
    }
  }
}

} // namespace

at::Tensor FusedAdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  UpdateQueue queue(bf16_);
  std::uint64_t slot = 0;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    SlotsByKind others;
    for (const at::Tensor& parameter : group.params()) {
      const std::uint64_t number = slot++;
      if (!parameter.grad().defined()) {
        continue;
      }
      State& state = State::in(state_[parameter.unsafeGetTensorImpl()]);
      prepare(state, parameter, options.amsgrad());
      state.step(state.step() + 1);
      if (!UpdateQueue::takes(parameter)) {
        add(others, parameter, state, options, bf16_);
        continue;
      }
      StepTensors tensors{parameter, parameter.grad(), {state.exp_avg(), state.exp_avg_sq()}};
      if (options.amsgrad()) {
        tensors.moments.push_back(state.max_exp_avg_sq());
      }
      queue.add(adamw_update({.lr = options.lr(),
                              .beta1 = beta1,
                              .beta2 = beta2,
                              .eps = options.eps(),
                              .weight_decay = options.weight_decay(),
                              .amsgrad = options.amsgrad()},
                             state.step()),
                tensors,
                state,
                number);
    }
    step_with_libtorch(others, options);
  }
  queue.run();
  return loss;
}

void FusedAdamW::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<State, AdamWOptions>(archive, *this);
}

void FusedAdamW::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<State, AdamWOptions>(archive, *this);
}

} // namespace tieshard

#include "tieshard/runtime/optim/fused_adamw.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace tieshard {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

/// What the kernel takes of one parameter group: tensors of one device, and there of one dtype.
struct Slots {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> squares;
  std::vector<at::Tensor> largest_squares; ///< with amsgrad only
  std::vector<at::Tensor> steps;           ///< float32 [1], on the same device
};

std::unique_ptr<AdamWParamState> new_state(const at::Tensor& parameter, bool amsgrad) {
  auto state = std::make_unique<AdamWParamState>();
  state->step(0);
  state->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  state->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  if (amsgrad) {
    state->max_exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
  }
  return state;
}

} // namespace

at::Tensor FusedAdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    std::map<std::pair<std::string, at::ScalarType>, Slots> by_kind;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      auto& kept = state_[parameter.unsafeGetTensorImpl()];
      if (kept == nullptr) {
        kept = new_state(parameter.detach(), options.amsgrad());
      }
      auto& state = static_cast<AdamWParamState&>(*kept);
      state.step(state.step() + 1);
      Slots& slots = by_kind[{parameter.device().str(), parameter.scalar_type()}];
      slots.parameters.push_back(parameter);
      slots.gradients.push_back(parameter.grad());
      slots.means.push_back(state.exp_avg());
      slots.squares.push_back(state.exp_avg_sq());
      if (options.amsgrad()) {
        slots.largest_squares.push_back(state.max_exp_avg_sq());
      }
      slots.steps.push_back(at::full({1}, static_cast<double>(state.step()), parameter.options().dtype(at::kFloat)));
    }
    for (const auto& [kind, slots] : by_kind) {
      const auto [beta1, beta2] = options.betas();
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
    }
  }
  return loss;
}

} // namespace tieshard

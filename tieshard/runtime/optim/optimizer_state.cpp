#include "tieshard/runtime/optim/optimizer_state.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tieshard/runtime/optim/bf16_state.h"
#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/fused_sgd.h"
#include "tieshard/runtime/optim/lion.h"

namespace tieshard {
namespace {

namespace optim = torch::optim;

template <typename AdamState>
StateFields adam_fields(AdamState& state) {
  return {.moments = {{"exp_avg", &state.exp_avg()},
                      {"exp_avg_sq", &state.exp_avg_sq()},
                      {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
          .counters = {{"step", &state.step()}}};
}

/// Of which class the state of an optimizer is: the first that fits, so derived classes stand before their bases.
template <typename Optimizer, typename State>
bool make_for(const optim::Optimizer& optimizer, std::unique_ptr<optim::OptimizerParamState>& made) {
  if (dynamic_cast<const Optimizer*>(&optimizer) != nullptr) {
    made = std::make_unique<State>();
  }
  return made != nullptr;
}

} // namespace

StateFields fields_of(optim::AdamWParamState& state) {
  return adam_fields(state);
}

StateFields fields_of(optim::SGDParamState& state) {
  return {.moments = {{"momentum_buffer", &state.momentum_buffer()}}, .counters = {}};
}

StateFields fields_of(LionParamState& state) {
  return {.moments = {{"exp_avg", &state.exp_avg()}}, .counters = {}};
}

std::optional<StateFields> fields_of(optim::OptimizerParamState& state) {
  if (auto* const known = dynamic_cast<MomentState*>(&state)) {
    return known->fields();
  }
  if (auto* const adamw = dynamic_cast<optim::AdamWParamState*>(&state)) {
    return adam_fields(*adamw);
  }
  if (auto* const adam = dynamic_cast<optim::AdamParamState*>(&state)) {
    return adam_fields(*adam);
  }
  if (auto* const sgd = dynamic_cast<optim::SGDParamState*>(&state)) {
    return fields_of(*sgd);
  }
  if (auto* const rmsprop = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return StateFields{.moments = {{"square_avg", &rmsprop->square_avg()},
                                   {"momentum_buffer", &rmsprop->momentum_buffer()},
                                   {"grad_avg", &rmsprop->grad_avg()}},
                       .counters = {{"step", &rmsprop->step()}}};
  }
  if (auto* const adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) {
    return StateFields{.moments = {{"sum", &adagrad->sum()}}, .counters = {{"step", &adagrad->step()}}};
  }
  return std::nullopt;
}

std::optional<std::vector<at::Tensor>> moments(const optim::OptimizerParamState& state) {
  const std::optional<StateFields> fields = fields_of(const_cast<optim::OptimizerParamState&>(state)); // only read
  if (!fields) {
    return std::nullopt;
  }
  std::vector<at::Tensor> defined;
  for (const auto& [name, tensor] : fields->moments) {
    if (tensor->defined()) {
      defined.push_back(*tensor);
    }
  }
  return defined;
}

std::unique_ptr<optim::OptimizerParamState> new_state(const optim::Optimizer& optimizer) {
  std::unique_ptr<optim::OptimizerParamState> made;
  make_for<FusedAdamW, FusedAdamW::State>(optimizer, made) || make_for<FusedSgd, FusedSgd::State>(optimizer, made) ||
      make_for<Lion, Lion::State>(optimizer, made) || make_for<optim::AdamW, optim::AdamWParamState>(optimizer, made) ||
      make_for<optim::Adam, optim::AdamParamState>(optimizer, made) ||
      make_for<optim::SGD, optim::SGDParamState>(optimizer, made) ||
      make_for<optim::RMSprop, optim::RMSpropParamState>(optimizer, made) ||
      make_for<optim::Adagrad, optim::AdagradParamState>(optimizer, made);
  return made;
}

void make_missing_state(optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) == nullptr) {
    return;
  }
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const optim::AdagradOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      std::unique_ptr<optim::OptimizerParamState>& kept = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (kept == nullptr) {
        auto made = std::make_unique<optim::AdagradParamState>();
        made->sum(at::full_like(parameter.detach(), options.initial_accumulator_value()));
        kept = std::move(made);
      }
    }
  }
}

} // namespace tieshard

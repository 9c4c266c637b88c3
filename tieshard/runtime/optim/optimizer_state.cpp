#include "tieshard/runtime/optim/optimizer_state.h"

#include <initializer_list>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace tieshard {
namespace {

std::vector<at::Tensor> defined(std::initializer_list<at::Tensor> tensors) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      list.push_back(tensor);
    }
  }
  return list;
}

} // namespace

std::optional<std::vector<at::Tensor>> moments(const torch::optim::OptimizerParamState& state) {
  namespace optim = torch::optim;
  if (const auto* foreign = dynamic_cast<const MomentState*>(&state)) {
    return foreign->moments();
  }
  if (const auto* adamw = dynamic_cast<const optim::AdamWParamState*>(&state)) {
    return defined({adamw->exp_avg(), adamw->exp_avg_sq(), adamw->max_exp_avg_sq()});
  }
  if (const auto* adam = dynamic_cast<const optim::AdamParamState*>(&state)) {
    return defined({adam->exp_avg(), adam->exp_avg_sq(), adam->max_exp_avg_sq()});
  }
  if (const auto* sgd = dynamic_cast<const optim::SGDParamState*>(&state)) {
    return defined({sgd->momentum_buffer()});
  }
  if (const auto* rmsprop = dynamic_cast<const optim::RMSpropParamState*>(&state)) {
    return defined({rmsprop->square_avg(), rmsprop->momentum_buffer(), rmsprop->grad_avg()});
  }
  if (const auto* adagrad = dynamic_cast<const optim::AdagradParamState*>(&state)) {
    return defined({adagrad->sum()});
  }
  return std::nullopt;
}

} // namespace tieshard

// tests/support/training.h
//
// The steps that tests train with: the global batch, each rank's part of it, and what comes out, gathered.

#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/state/full_tensor.h"
#include "tieshard/runtime/train/parallelize.h"
#include "tieshard/runtime/train/trainer.h"

#include "tests/support/batch.h"

namespace tieshard::testing {

struct TrainResult {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;  ///< whole, of the first step
  std::map<std::string, at::Tensor> parameters; ///< whole, after the last
};

inline torch::optim::AdamWOptions adamw_options() {
  return torch::optim::AdamWOptions(1e-3).betas({0.9, 0.999}).eps(1e-8).weight_decay(0.01);
}

/// `steps` AdamW steps on one batch; whole gradients and parameters on every rank.
inline TrainResult train_steps(ParallelModel& parallel, const DeviceMesh& mesh, const Batch& global, int steps) {
  TrainResult result;
  auto optimizer = OptimizerGuard(parallel.state).build<torch::optim::AdamW>(adamw_options());
  const Batch mine = part_of(global, mesh);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    result.losses.push_back(backward_global_mean(*parallel.model, mesh, mine.ids, mine.labels));
    if (step == 0) {
      for (const FsdpParam* parameter : parallel.state->managed()) {
        const at::Tensor& gradient = parameter->parameter().grad();
        if (gradient.defined()) {
          result.gradients[parameter->fqn()] = full_tensor(mesh, parallel.plan, *parameter, gradient);
        }
      }
    }
    optimizer.step();
  }
  for (const NamedTensor& named : full_state_dict(*parallel.state)) {
    result.parameters[named.fqn] = named.tensor;
  }
  return result;
}

/// Options under which backward_global_mean's gradients are right.
inline ParallelizeOptions exact_options() {
  ParallelizeOptions options;
  options.fsdp.gradient_divide_factor = 1.0;
  return options;
}

inline double largest_difference(const at::Tensor& first, const at::Tensor& second) {
  return first.numel() == 0 ? 0.0 : (first - second).abs().max().item<double>();
}

} // namespace tieshard::testing

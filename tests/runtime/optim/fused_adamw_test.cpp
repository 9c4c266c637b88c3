// The fused step against LibTorch's own AdamW: same options, same state, same numbers.

#include "tieshard/runtime/optim/fused_adamw.h"

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;

std::vector<at::Tensor> parameters() {
  std::vector<at::Tensor> made;
  const std::vector<std::vector<std::int64_t>> shapes{{7, 33}, {1}, {0, 5}, {3, 2, 65}};
  for (const auto& shape : shapes) {
    made.push_back(at::sin(at::arange(c10::multiply_integers(shape), at::kFloat)).view(shape).clone());
    made.back().requires_grad_(true);
  }
  return made;
}

/// Other gradients at each step; the second parameter has none at odd ones.
void set_gradients(std::vector<at::Tensor>& parameters, int step) {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    at::Tensor& parameter = parameters[index];
    parameter.mutable_grad() = index == 1 && step % 2 == 1
                                   ? at::Tensor()
                                   : at::cos(at::arange(parameter.numel(), at::kFloat) + step).view(parameter.sizes());
  }
}

void expect_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  for (std::size_t index = 0; index < ours.size(); ++index) {
    EXPECT_TRUE(at::allclose(ours[index], theirs[index], /*rtol=*/1e-6, /*atol=*/1e-6)) << "parameter " << index;
  }
}

void compare(const AdamWOptions& options) {
  std::vector<at::Tensor> ours = parameters();
  std::vector<at::Tensor> theirs = parameters();
  FusedAdamW fused(ours, options);
  AdamW plain(theirs, options);
  for (int step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    fused.step();
    plain.step();
  }
  expect_close(ours, theirs);
  EXPECT_GT((ours.front() - parameters().front()).abs().max().item<float>(), 0.01F) << "nothing was stepped";
}

TEST(FusedAdamW, HasTheNumbersOfAdamWOverTwentySteps) {
  compare(AdamWOptions(1e-2));
  compare(AdamWOptions(3e-3).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.3));
  compare(AdamWOptions(1e-2).weight_decay(0).amsgrad(true));
}

TEST(FusedAdamW, ContinuesFromTheStateOfAdamWAndTheOtherWayRound) {
  std::vector<at::Tensor> ours = parameters();
  std::vector<at::Tensor> theirs = parameters();
  AdamW plain(theirs, AdamWOptions(1e-2));
  FusedAdamW fused(ours, AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    plain.step();
    fused.step();
  }
  for (std::size_t index = 0; index < ours.size(); ++index) { // each goes on with the other's state
    plain.state()[theirs[index].unsafeGetTensorImpl()].swap(fused.state()[ours[index].unsafeGetTensorImpl()]);
  }
  for (int step = 3; step < 6; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    plain.step();
    fused.step();
  }
  expect_close(ours, theirs);
}

TEST(FusedAdamW, LeavesAParameterWithoutAGradientAloneAndGivesTheClosuresLoss) {
  std::vector<at::Tensor> held = parameters();
  const at::Tensor before = held.front().detach().clone();
  FusedAdamW fused(held, AdamWOptions(1e-2));
  const at::Tensor loss = fused.step([&] { return held[3].sum(); });
  EXPECT_EQ(loss.item<float>(), held[3].sum().item<float>());
  EXPECT_TRUE(at::equal(held.front(), before));
  EXPECT_TRUE(fused.state().empty());
}

} // namespace
} // namespace tieshard::testing

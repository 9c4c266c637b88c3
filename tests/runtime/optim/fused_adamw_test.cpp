// The fused step against LibTorch's own AdamW: same options, same state, same numbers.

#include "tieshard/runtime/optim/fused_adamw.h"

#include <sstream>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/serialize.h>

#include <gtest/gtest.h>

#include "tests/support/stepped_tensors.h"

namespace tieshard::testing {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;

void compare(const AdamWOptions& options, at::ScalarType dtype = at::kFloat) {
  const std::vector<at::Tensor> ours = stepped_tensors(dtype);
  const std::vector<at::Tensor> theirs = stepped_tensors(dtype);
  FusedAdamW fused(ours, options);
  AdamW plain(theirs, options);
  step_on_gradients(fused, ours, 0, 20);
  step_on_gradients(plain, theirs, 0, 20);
  expect_all_close(ours, theirs);
  EXPECT_GT(moved(ours), 0.01) << "nothing was stepped";
}

TEST(FusedAdamW, HasTheNumbersOfAdamWOverTwentySteps) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    compare(AdamWOptions(1e-2), dtype);
    compare(AdamWOptions(3e-3).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.3), dtype);
    compare(AdamWOptions(1e-2).weight_decay(0).amsgrad(true), dtype);
  }
}

TEST(FusedAdamW, ContinuesFromTheStateOfAdamWAndTheOtherWayRound) {
  const std::vector<at::Tensor> ours = stepped_tensors();
  const std::vector<at::Tensor> theirs = stepped_tensors();
  AdamW plain(theirs, AdamWOptions(1e-2));
  FusedAdamW fused(ours, AdamWOptions(1e-2));
  step_on_gradients(plain, theirs, 0, 3);
  step_on_gradients(fused, ours, 0, 3);
  for (std::size_t index = 0; index < ours.size(); ++index) { // each goes on with the other's state
    plain.state()[theirs[index].unsafeGetTensorImpl()].swap(fused.state()[ours[index].unsafeGetTensorImpl()]);
  }
  step_on_gradients(plain, theirs, 3, 6);
  step_on_gradients(fused, ours, 3, 6);
  expect_all_close(ours, theirs);
}

TEST(FusedAdamW, LeavesAParameterWithoutAGradientAloneAndGivesTheClosuresLoss) {
  const std::vector<at::Tensor> held = stepped_tensors();
  const at::Tensor before = held.front().detach().clone();
  FusedAdamW fused(held, AdamWOptions(1e-2));
  const at::Tensor loss = fused.step([&] { return held[3].sum(); });
  EXPECT_EQ(loss.item<float>(), held[3].sum().item<float>());
  EXPECT_TRUE(at::equal(held.front(), before));
  EXPECT_TRUE(fused.state().empty());
}

TEST(FusedAdamW, StepsTensorsThatAreNotContiguous) {
  const auto turned = [] {
    return at::sin(at::arange(60, at::kFloat)).view({6, 10}).t().detach().requires_grad_(true);
  };
  const at::Tensor ours = turned();
  const at::Tensor theirs = turned();
  FusedAdamW fused(std::vector{ours}, AdamWOptions(1e-2));
  AdamW plain(std::vector{theirs}, AdamWOptions(1e-2));
  step_on_gradients(fused, {ours}, 0, 4);
  step_on_gradients(plain, {theirs}, 0, 4);
  expect_all_close({ours}, {theirs});
}

TEST(FusedAdamW, GivesTheSameBitsOnAnyNumberOfThreads) {
  constexpr std::int64_t kMany = (std::int64_t{1} << 20) + 77; // several pieces, and a rest
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    const at::Tensor parameter = at::sin(at::arange(kMany, at::kFloat)).requires_grad_(true);
    FusedAdamW fused(std::vector{parameter}, AdamWOptions(1e-2));
    step_on_gradients(fused, {parameter}, 0, 2);
    results.push_back(parameter.detach());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST(FusedAdamW, TellsAutogradThatAParameterHasChanged) {
  const at::Tensor parameter = at::ones({3}).requires_grad_(true);
  FusedAdamW fused(std::vector{parameter}, AdamWOptions(1e-2));
  const at::Tensor loss = (parameter * parameter).sum();
  set_gradients({parameter}, 0);
  fused.step();
  EXPECT_THROW(loss.backward(), c10::Error); // what was saved for it is gone
}

TEST(FusedAdamW, GoesOnFromWhatItSaved) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> parameters = stepped_tensors(dtype);
    const std::vector<torch::optim::OptimizerParamGroup> groups{parameters};
    FusedAdamW first(groups, AdamWOptions(1e-2), {.update = Bf16Update::kMasterWeights});
    step_on_gradients(first, parameters, 0, 3);
    std::stringstream file;
    torch::save(first, file);
    const std::vector<at::Tensor> copies = stepped_tensors(dtype);
    FusedAdamW second(std::vector<torch::optim::OptimizerParamGroup>{copies},
                      AdamWOptions(1),
                      {.update = Bf16Update::kMasterWeights});
    torch::load(second, file);
    for (std::size_t index = 0; index < copies.size(); ++index) {
      copies[index].detach().copy_(parameters[index].detach());
    }
    step_on_gradients(first, parameters, 3, 6);
    step_on_gradients(second, copies, 3, 6);
    expect_all_equal(parameters, copies);
  }
}

} // namespace
} // namespace tieshard::testing

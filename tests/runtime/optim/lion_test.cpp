// Lion against the paper's algorithm in float64, written here with LibTorch's operators.

#include "tieshard/runtime/optim/lion.h"

#include <cmath>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/serialize.h>

#include <gtest/gtest.h>

#include "tests/support/stepped_tensors.h"

namespace tieshard::testing {
namespace {

/// One parameter's values after `steps` steps of Algorithm 2.
at::Tensor paper(const at::Tensor& start, const LionOptions& options, std::size_t index, int steps) {
  const auto [beta1, beta2] = options.betas();
  at::Tensor theta = start.detach().to(at::kDouble);
  at::Tensor mean = at::zeros_like(theta);
  std::vector<at::Tensor> parameters = stepped_tensors();
  for (int step = 0; step < steps; ++step) {
    set_gradients(parameters, step);
    if (!parameters[index].grad().defined()) {
      continue;
    }
    const at::Tensor gradient = parameters[index].grad().to(at::kDouble);
    const at::Tensor update = (beta1 * mean + (1 - beta1) * gradient).sign();
    mean = beta2 * mean + (1 - beta2) * gradient;
    theta = theta - options.lr() * (update + options.weight_decay() * theta);
  }
  return theta;
}

TEST(Lion, FollowsThePaperOverTwentySteps) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const LionOptions& options : {LionOptions(1e-3), LionOptions(3e-3).betas({0.95, 0.98}).weight_decay(0.5)}) {
      const std::vector<at::Tensor> parameters = stepped_tensors(dtype);
      Lion lion(parameters, options);
      step_on_gradients(lion, parameters, 0, 20);
      for (std::size_t index = 0; index < parameters.size(); ++index) {
        const at::Tensor expected = paper(stepped_tensors()[index], options, index, 20);
        EXPECT_TRUE(at::allclose(parameters[index].detach().to(at::kDouble), expected, 1e-6, 1e-6)) << index;
      }
      EXPECT_GT(moved(parameters), 1e-3) << "nothing was stepped";
    }
  }
}

TEST(Lion, KeepsTheOptionsOfAGroup) {
  const std::vector<at::Tensor> parameters = stepped_tensors();
  Lion lion({{{parameters[0]}, std::make_unique<LionOptions>(LionOptions(1).weight_decay(0))}, {{parameters[3]}}},
            LionOptions(2).weight_decay(0.5));
  const auto& own = static_cast<const LionOptions&>(lion.param_groups()[0].options());
  EXPECT_EQ(own.lr(), 1);
  EXPECT_EQ(own.weight_decay(), 0);
  EXPECT_EQ(lion.param_groups()[1].options().get_lr(), 2);
}

TEST(Lion, GoesOnFromWhatItSaved) {
  const std::vector<at::Tensor> parameters = stepped_tensors();
  Lion first(parameters, LionOptions(1e-3));
  step_on_gradients(first, parameters, 0, 3);
  std::stringstream file;
  torch::save(first, file);
  const std::vector<at::Tensor> copies = stepped_tensors();
  Lion second(copies, LionOptions(1));
  torch::load(second, file);
  for (std::size_t index = 0; index < copies.size(); ++index) {
    copies[index].detach().copy_(parameters[index].detach());
  }
  step_on_gradients(first, parameters, 3, 6);
  step_on_gradients(second, copies, 3, 6);
  expect_all_equal(parameters, copies);
}

TEST(Lion, RefusesOptionsThatMakeNoSense) {
  EXPECT_THROW(Lion(stepped_tensors(), LionOptions(-1)), c10::Error);
  EXPECT_THROW(Lion(stepped_tensors(), LionOptions(1).betas({1.0, 0.9})), c10::Error);
  EXPECT_THROW(Lion(stepped_tensors(), LionOptions(1).weight_decay(-1)), c10::Error);
}

TEST(Lion, NaNStaysNaNInBothOfItsWays) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor parameter = at::ones({3}, dtype).requires_grad_(true);
    Lion lion(std::vector<at::Tensor>{parameter}, LionOptions(0.5));
    parameter.mutable_grad() = at::tensor({2.0, std::nan(""), 0.0}).to(dtype);
    lion.step();
    EXPECT_EQ(parameter[0].item<double>(), 0.5) << dtype;
    EXPECT_TRUE(std::isnan(parameter[1].item<double>())) << dtype;
    EXPECT_EQ(parameter[2].item<double>(), 1.0) << dtype;
  }
}

} // namespace
} // namespace tieshard::testing

// tests/support/stepped_tensors.h
//
// Parameters of odd shapes and the gradients of each step, alike for two optimizers that are compared.

#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <gtest/gtest.h>

namespace tieshard::testing {

/// Four leaves that require a gradient; the third is empty. The same values whenever they are made.
inline std::vector<at::Tensor> stepped_tensors(at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> made;
  const std::vector<std::vector<std::int64_t>> shapes{{7, 33}, {1}, {0, 5}, {3, 2, 65}};
  for (const auto& shape : shapes) {
    made.push_back(at::sin(at::arange(c10::multiply_integers(shape), at::kFloat)).view(shape).to(dtype).clone());
    made.back().requires_grad_(true);
  }
  return made;
}

/// Other gradients at each step; the second parameter has none at odd ones.
inline void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& parameter = parameters[index];
    parameter.mutable_grad() = index == 1 && step % 2 == 1 ? at::Tensor()
                                                           : at::cos(at::arange(parameter.numel(), at::kFloat) + step)
                                                                 .view(parameter.sizes())
                                                                 .to(parameter.scalar_type());
  }
}

inline void step_on_gradients(torch::optim::Optimizer& optimizer,
                              const std::vector<at::Tensor>& parameters,
                              int first,
                              int end) {
  for (int step = first; step < end; ++step) {
    set_gradients(parameters, step);
    optimizer.step();
  }
}

inline void expect_all_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t index = 0; index < ours.size(); ++index) {
    EXPECT_TRUE(at::allclose(ours[index], theirs[index], /*rtol=*/1e-6, /*atol=*/1e-6)) << "parameter " << index;
  }
}

inline void expect_all_equal(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t index = 0; index < ours.size(); ++index) {
    EXPECT_TRUE(at::equal(ours[index], theirs[index])) << "parameter " << index;
  }
}

/// How far the furthest element has gone from where stepped_tensors() begin.
inline double moved(const std::vector<at::Tensor>& parameters) {
  return (parameters.front().detach().to(at::kFloat) - stepped_tensors().front().detach()).abs().max().item<double>();
}

} // namespace tieshard::testing

// The fused step against LibTorch's own SGD.

#include "tieshard/runtime/optim/fused_sgd.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tests/support/stepped_tensors.h"

namespace tieshard::testing {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

TEST(FusedSgd, HasTheNumbersOfSgdOverTwentySteps) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const SGDOptions& options : {SGDOptions(1e-2),
                                      SGDOptions(1e-2).weight_decay(0.1),
                                      SGDOptions(1e-2).momentum(0.9),
                                      SGDOptions(1e-2).momentum(0.9).dampening(0.25).weight_decay(0.1),
                                      SGDOptions(1e-2).momentum(0.9).nesterov(true).weight_decay(0.1)}) {
      const std::vector<at::Tensor> ours = stepped_tensors(dtype);
      const std::vector<at::Tensor> theirs = stepped_tensors(dtype);
      FusedSgd fused(ours, options);
      SGD plain(theirs, options);
      step_on_gradients(fused, ours, 0, 20);
      step_on_gradients(plain, theirs, 0, 20);
      expect_all_close(ours, theirs);
      EXPECT_GT(moved(ours), 0.005) << "nothing was stepped";
    }
  }
}

TEST(FusedSgd, ContinuesFromTheStateOfSgdAndTheOtherWayRound) {
  const std::vector<at::Tensor> ours = stepped_tensors();
  const std::vector<at::Tensor> theirs = stepped_tensors();
  SGD plain(theirs, SGDOptions(1e-2).momentum(0.9).dampening(0.5));
  FusedSgd fused(ours, SGDOptions(1e-2).momentum(0.9).dampening(0.5));
  step_on_gradients(plain, theirs, 0, 3);
  step_on_gradients(fused, ours, 0, 3);
  for (std::size_t index = 0; index < ours.size(); ++index) { // each goes on with the other's state
    plain.state()[theirs[index].unsafeGetTensorImpl()].swap(fused.state()[ours[index].unsafeGetTensorImpl()]);
  }
  step_on_gradients(plain, theirs, 3, 6);
  step_on_gradients(fused, ours, 3, 6);
  expect_all_close(ours, theirs);
}

TEST(FusedSgd, KeepsNothingWithoutMomentum) {
  const std::vector<at::Tensor> held = stepped_tensors();
  FusedSgd fused(held, SGDOptions(1e-2));
  step_on_gradients(fused, held, 0, 2);
  EXPECT_TRUE(fused.state().empty());
}

} // namespace
} // namespace tieshard::testing

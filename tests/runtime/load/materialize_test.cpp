#include "tieshard/runtime/load/materialize.h"

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

at::Tensor meta_leaf(at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions().device(at::kMeta)).requires_grad_(true);
}

TEST(Materialize, GivesStorageToTheSameObject) {
  const at::Tensor tensor = meta_leaf({6, 4});
  const at::Tensor other_holder = tensor;
  EXPECT_TRUE(materialize(tensor, at::empty({6, 2}, at::kBFloat16)));
  EXPECT_TRUE(other_holder.is_same(tensor));
  EXPECT_TRUE(other_holder.device().is_cpu());
  EXPECT_EQ(other_holder.sizes().vec(), (std::vector<std::int64_t>{6, 2}));
  EXPECT_EQ(other_holder.strides().vec(), (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(other_holder.scalar_type(), at::kBFloat16);
  EXPECT_EQ(other_holder.storage().nbytes(), 24U);
}

TEST(Materialize, LeavesALeafThatCollectsGradients) {
  const at::Tensor tensor = meta_leaf({3});
  materialize(tensor, at::empty({3}, at::kFloat));
  {
    const at::NoGradGuard no_grad;
    tensor.fill_(2);
  }
  EXPECT_TRUE(tensor.is_leaf());
  EXPECT_TRUE(tensor.requires_grad());
  (tensor * tensor).sum().backward();
  EXPECT_TRUE(at::equal(tensor.grad(), at::full({3}, 4.0F)));
}

TEST(Materialize, IsSeenByAModuleAndAnOptimizerThatHeldTheMetaTensor) {
  torch::nn::Module module;
  const at::Tensor member = module.register_parameter("weight", at::empty({2}, at::TensorOptions().device(at::kMeta)));
  torch::optim::SGD optimizer(std::vector<at::Tensor>{member}, torch::optim::SGDOptions(0.5));
  materialize(member, at::empty({2}, at::kFloat));
  {
    const at::NoGradGuard no_grad;
    member.fill_(1);
  }
  module.named_parameters()["weight"].sum().backward();
  optimizer.step();
  EXPECT_TRUE(at::equal(module.named_parameters()["weight"].detach(), at::full({2}, 0.5F)));
}

TEST(Materialize, ChangesNothingTheSecondTime) {
  const at::Tensor tensor = meta_leaf({4});
  EXPECT_TRUE(materialize(tensor, at::empty({4}, at::kFloat)));
  {
    const at::NoGradGuard no_grad;
    tensor.fill_(7);
  }
  const void* bytes = tensor.const_data_ptr();
  EXPECT_FALSE(materialize(tensor, at::empty({2}, at::kBFloat16)));
  EXPECT_EQ(tensor.const_data_ptr(), bytes);
  EXPECT_TRUE(at::equal(tensor.detach(), at::full({4}, 7.0F)));
}

TEST(Materialize, KnowsEmptyAndScalarParameters) {
  const at::Tensor empty = meta_leaf({4, 3});
  EXPECT_TRUE(materialize(empty, at::empty({4, 0}, at::kFloat)));
  EXPECT_FALSE(empty.is_meta());
  EXPECT_EQ(empty.numel(), 0);
  const at::Tensor scalar = meta_leaf({});
  EXPECT_TRUE(materialize(scalar, at::empty({}, at::kFloat)));
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(scalar.storage().nbytes(), 4U);
}

TEST(Materialize, SharesTheMemoryThatItIsGiven) {
  const at::Tensor values = at::arange(6, at::kFloat).view({2, 3});
  const at::Tensor tensor = meta_leaf({4, 3});
  EXPECT_TRUE(materialize(tensor, values));
  EXPECT_EQ(tensor.const_data_ptr(), values.const_data_ptr());
  EXPECT_TRUE(at::equal(tensor.detach(), values));
}

} // namespace
} // namespace tieshard::testing

// Every function of the models that has a backward of its own, differentiated twice: refused, or right. Never wrong.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/models/lean_functions.h"
#include "tieshard/runtime/models/linear_cross_entropy.h"
#include "tieshard/runtime/models/linear_kernel.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/support/raised.h"

namespace tieshard::testing {
namespace {

using Leaves = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Leaves&)>;

at::Tensor wave(at::IntArrayRef shape, double step) {
  return (at::sin(at::arange(c10::multiply_integers(shape), at::kFloat) * step).view(shape) + 0.1).requires_grad_(true);
}

/// The gradient, on the first leaf, of the squared gradient on it.
at::Tensor second_derivative(const Function& function, const Leaves& leaves) {
  const at::Tensor loss = function(leaves).square().sum();
  const at::Tensor first = torch::autograd::grad({loss}, {leaves[0]}, {}, std::nullopt, /*create_graph=*/true).front();
  return torch::autograd::grad({first.square().sum()}, {leaves[0]}).front();
}

void expect_refused_or_right(const Function& ours, const Function& plain, const Leaves& leaves) {
  at::Tensor got;
  if (const auto refusal = raised<UsageError>([&] { got = second_derivative(ours, leaves); })) {
    EXPECT_EQ(id(refusal->code), id(Code::kWrongState));
    EXPECT_THAT(refusal->why, ::testing::HasSubstr("create_graph"));
    return;
  }
  EXPECT_TRUE(at::allclose(got, second_derivative(plain, leaves), 1e-3, 1e-3));
}

TEST(SecondDerivative, OfRmsNorm) {
  expect_refused_or_right(
      [](const Leaves& leaf) { return rms_norm(leaf[0], leaf[1], 1e-5); },
      [](const Leaves& leaf) { return leaf[1] * leaf[0] * at::rsqrt(leaf[0].square().mean(-1, true) + 1e-5); },
      {wave({3, 8}, 0.7), wave({8}, 1.3)});
}

TEST(SecondDerivative, OfSiluTimes) {
  expect_refused_or_right([](const Leaves& leaf) { return activated_times(leaf[0], leaf[1], GateActivation::kSilu); },
                          [](const Leaves& leaf) { return at::sigmoid(leaf[0]) * leaf[0] * leaf[1]; },
                          {wave({3, 8}, 0.7), wave({3, 8}, 1.3)});
}

TEST(SecondDerivative, OfALinearLayer) {
  expect_refused_or_right([](const Leaves& leaf) { return apply_linear(leaf[0], leaf[1], leaf[2]); },
                          [](const Leaves& leaf) { return at::matmul(leaf[0], leaf[1].t()) + leaf[2]; },
                          {wave({3, 8}, 0.7), wave({5, 8}, 1.3), wave({5}, 0.3)});
}

TEST(SecondDerivative, OfTheLoss) {
  const at::Tensor targets = at::arange(3, at::kLong);
  expect_refused_or_right(
      [&](const Leaves& leaf) {
        return linear_cross_entropy_sum(leaf[0], leaf[1], targets, {.ignored = kIgnoredLabel});
      },
      [&](const Leaves& leaf) {
        return at::cross_entropy_loss(at::matmul(leaf[0], leaf[1].t()), targets, {}, at::Reduction::Sum);
      },
      {wave({3, 8}, 0.7), wave({5, 8}, 1.3)});
}

/// By every way to a loss: none leads to a second derivative, and no advice may say that one does.
TEST(SecondDerivative, OfAModelIsRefusedOnEveryWay) {
  const HfConfig config = HfConfig::parse(
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 11, "hidden_size": 8,
          "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "hidden_act": "silu"})",
      "c.json");
  const auto model = make_model(config, TieRegistry(), {.device = at::kCPU});
  for (const NamedTensor& named : unique_parameters(*model)) {
    at::Tensor(named.tensor.detach()).copy_(wave(named.tensor.sizes(), 0.7).detach());
  }
  const at::Tensor ids = at::arange(6, at::kLong).view({1, 6});
  for (const bool pieces : {true, false}) {
    const at::Tensor loss = pieces ? model->loss(ids, ids) : causal_lm_loss_sum(model->forward(ids), ids);
    const auto refusal = raised<UsageError>([&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); });
    ASSERT_TRUE(refusal);
    EXPECT_EQ(id(refusal->code), id(Code::kWrongState));
    EXPECT_THAT(refusal->fix, ::testing::Not(::testing::HasSubstr("causal_lm_loss_sum")));
  }
}

} // namespace
} // namespace tieshard::testing

// Our linear against torch's: values and gradients, in every layout that the models hand over.

#include "tieshard/runtime/models/linear_kernel.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

at::Tensor wave(at::IntArrayRef shape, double step, at::ScalarType dtype) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * step).view(shape).to(dtype);
}

void expect_near(const at::Tensor& ours, const at::Tensor& exact, double bound, const char* what) {
  ASSERT_EQ(ours.sizes(), exact.sizes()) << what;
  if (ours.numel() > 0) {
    EXPECT_LE((ours.to(at::kDouble) - exact).abs().max().item<double>(), bound) << what;
  }
}

/// Both against float64; `bound` covers sums of 33 products.
void compare(at::IntArrayRef x_shape, bool transposed, bool with_bias, at::ScalarType dtype, double bound) {
  const std::int64_t in = x_shape.back();
  constexpr std::int64_t kOut = 7;
  const auto leaves = [&](at::ScalarType kind) {
    at::Tensor x = wave(x_shape, 0.7, dtype).to(kind);
    at::Tensor weight = transposed ? wave({in, kOut}, 1.3, dtype).to(kind).t() : wave({kOut, in}, 1.3, dtype).to(kind);
    return std::vector<at::Tensor>{x.detach().requires_grad_(true),
                                   weight.detach().requires_grad_(true),
                                   wave({kOut}, 0.3, dtype).to(kind).requires_grad_(true)};
  };
  const auto run = [&](std::vector<at::Tensor>& leaf, bool ours) {
    const at::Tensor bias = with_bias ? leaf[2] : at::Tensor();
    const at::Tensor y = ours ? apply_linear(leaf[0], leaf[1], bias) : at::linear(leaf[0], leaf[1], bias);
    (y * wave(y.sizes(), 0.9, y.scalar_type())).sum().backward();
    return y.detach();
  };
  std::vector<at::Tensor> mine = leaves(dtype);
  std::vector<at::Tensor> exact = leaves(at::kDouble);
  const at::Tensor y = run(mine, true);
  EXPECT_EQ(y.scalar_type(), dtype);
  expect_near(y, run(exact, false), bound, "y");
  expect_near(mine[0].grad(), exact[0].grad(), bound, "gradient of x");
  expect_near(mine[1].grad(), exact[1].grad(), bound, "gradient of the weight");
  EXPECT_EQ(mine[2].grad().defined(), with_bias);
  if (with_bias) {
    expect_near(mine[2].grad(), exact[2].grad(), bound, "gradient of the bias");
  }
}

TEST(LinearKernel, HasTheValuesAndGradientsOfTorchsLinear) {
  for (const bool transposed : {false, true}) {
    for (const bool with_bias : {false, true}) {
      compare({5, 33}, transposed, with_bias, at::kFloat, 1e-5);
      compare({2, 3, 33}, transposed, with_bias, at::kFloat, 1e-5);
      compare({1, 1}, transposed, with_bias, at::kFloat, 1e-5);
      compare({0, 33}, transposed, with_bias, at::kFloat, 1e-5);
      compare({5, 33}, transposed, with_bias, at::kDouble, 1e-12);
      compare({5, 33}, transposed, with_bias, at::kBFloat16, 0.2);
    }
  }
}

TEST(LinearKernel, GivesAFrozenWeightNoGradient) {
  const at::Tensor x = wave({5, 33}, 0.7, at::kFloat).requires_grad_(true);
  const at::Tensor weight = wave({7, 33}, 1.3, at::kFloat);
  apply_linear(x, weight).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(LinearKernel, StaysInFloat32WhereTorchIsAskedNotToUseOnednn) {
  const at::Tensor x = wave({5, 33}, 0.7, at::kFloat);
  const at::Tensor weight = wave({7, 33}, 1.3, at::kFloat);
  const bool before = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);
  const at::Tensor plain = apply_linear(x, weight);
  at::globalContext().setUserEnabledMkldnn(before);
  EXPECT_TRUE(at::equal(plain, at::linear(x, weight)));
}

TEST(MatmulTransposed, TakesEitherSideTransposedInMemory) {
  const at::Tensor a = wave({33, 5}, 0.7, at::kFloat).t();
  const at::Tensor b = wave({33, 7}, 1.3, at::kFloat).t();
  expect_near(matmul_transposed(a, b), at::mm(a.to(at::kDouble), b.to(at::kDouble).t()), 1e-5, "a b^T");
}

} // namespace
} // namespace tieshard::testing

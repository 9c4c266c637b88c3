// The functions that compute their inner values again in backward, against graphs of single operations.

#include "tieshard/runtime/models/lean_functions.h"

#include <functional>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

using Leaves = std::vector<at::Tensor>;

at::Tensor wave(at::IntArrayRef shape, double step) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kFloat) * step).view(shape) + 0.1;
}

Leaves leaves_of(const Leaves& values, at::ScalarType dtype) {
  Leaves leaves;
  for (const at::Tensor& value : values) {
    leaves.push_back(value.detach().to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true));
  }
  return leaves;
}

/// Output and gradients of both, in float32 to rounding and in bfloat16 to a few of its roundings.
void compare(const std::function<at::Tensor(const Leaves&)>& ours,
             const std::function<at::Tensor(const Leaves&)>& plain,
             const Leaves& values) {
  for (const auto& [dtype, bound] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 0.05}}) {
    const Leaves mine = leaves_of(values, dtype);
    const Leaves exact = leaves_of(values, dtype);
    const at::Tensor y = ours(mine);
    const at::Tensor expected = plain(exact);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_TRUE(at::allclose(y.to(at::kFloat), expected.to(at::kFloat), bound, bound));
    const at::Tensor weights = wave(y.sizes(), 0.9).to(dtype);
    (y * weights).sum().backward();
    (expected * weights).sum().backward();
    for (std::size_t index = 0; index < mine.size(); ++index) {
      EXPECT_EQ(mine[index].grad().scalar_type(), dtype);
      EXPECT_TRUE(at::allclose(mine[index].grad().to(at::kFloat), exact[index].grad().to(at::kFloat), bound, bound))
          << "leaf " << index;
    }
  }
}

TEST(RmsNormFunction, HasTheValuesAndGradientsOfSingleOperations) {
  constexpr double kEps = 1e-5;
  compare([](const Leaves& leaf) { return rms_norm(leaf[0], leaf[1], kEps); },
          [](const Leaves& leaf) {
            const at::Tensor wide = leaf[0].to(at::kFloat);
            const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, true) + kEps);
            return leaf[1] * (wide * scale).to(leaf[0].scalar_type());
          },
          {wave({2, 3, 33}, 0.7), wave({33}, 1.3)});
}

TEST(RmsNormFunction, MultipliesByOnePlusTheWeightInFloat32ForGemma) {
  constexpr double kEps = 1e-6;
  compare([](const Leaves& leaf) { return rms_norm(leaf[0], leaf[1], kEps, NormScale::kOnePlusWeight); },
          [](const Leaves& leaf) {
            const at::Tensor wide = leaf[0].to(at::kFloat);
            const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, true) + kEps);
            return (wide * scale * (1 + leaf[1].to(at::kFloat))).to(leaf[0].scalar_type());
          },
          {wave({2, 3, 33}, 0.7), wave({33}, 1.3)});
}

TEST(ActivatedTimesFunction, HasTheValuesAndGradientsOfSingleOperations) {
  const auto expect = [](GateActivation activation, const std::function<at::Tensor(const at::Tensor&)>& plain) {
    compare([&](const Leaves& leaf) { return activated_times(leaf[0], leaf[1], activation); },
            [&](const Leaves& leaf) { return plain(leaf[0]) * leaf[1]; },
            {wave({2, 3, 17}, 0.7) * 4, wave({2, 3, 17}, 1.3)});
  };
  expect(GateActivation::kSilu, [](const at::Tensor& x) { return at::silu(x); });
  expect(GateActivation::kGeluTanh, [](const at::Tensor& x) { return at::gelu(x, "tanh"); });
  expect(GateActivation::kGeluErf, [](const at::Tensor& x) { return at::gelu(x); });
}

TEST(ClampedSwigluFunction, HasTheValuesAndGradientsOfSingleOperations) {
  static constexpr double kLimit = 2.5;
  const at::Tensor x = wave({4, 5, 22}, 0.7) * 6; // beyond the limit on both sides
  ASSERT_GT((x > kLimit).sum().item<int>(), 50);
  ASSERT_GT((x < -kLimit).sum().item<int>(), 50);
  compare([](const Leaves& leaf) { return clamped_swiglu(leaf[0], kLimit); },
          [](const Leaves& leaf) {
            const at::Tensor gate = leaf[0].slice(-1, 0, std::nullopt, 2).clamp_max(kLimit);
            const at::Tensor up = leaf[0].slice(-1, 1, std::nullopt, 2).clamp(-kLimit, kLimit);
            return (up + 1) * gate * at::sigmoid(1.702 * gate);
          },
          {x});
}

TEST(RmsNormFunction, GivesFrozenInputsNoGradient) {
  const at::Tensor x = wave({3, 8}, 0.7).requires_grad_(true);
  const at::Tensor weight = wave({8}, 1.3);
  rms_norm(x, weight, 1e-5).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

} // namespace
} // namespace tieshard::testing

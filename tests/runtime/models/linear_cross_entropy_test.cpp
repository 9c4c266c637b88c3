// The loss in pieces against the loss of whole logits.

#include "tieshard/runtime/models/linear_cross_entropy.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/models/language_model.h"

#include "tests/support/raised.h"

namespace tieshard::testing {
namespace {

struct Inputs {
  at::Tensor x;
  at::Tensor weight;
  at::Tensor targets;
};

Inputs inputs(std::int64_t rows, std::int64_t hidden, std::int64_t vocab, at::ScalarType dtype = at::kFloat) {
  const auto wave = [dtype](std::int64_t count, double step) {
    return at::sin(at::arange(count, at::kDouble) * step).to(dtype);
  };
  return {.x = wave(rows * hidden, 0.7).view({rows, hidden}).requires_grad_(true),
          .weight = wave(vocab * hidden, 1.3).view({vocab, hidden}).requires_grad_(true),
          .targets = at::remainder(at::arange(rows) * 7, vocab)};
}

/// The same by whole logits, as a user would write it.
at::Tensor by_whole_logits(const Inputs& in, double scale) {
  const at::Tensor logits = at::linear(in.x, in.weight).to(at::kFloat);
  return at::cross_entropy_loss(logits, in.targets, {}, at::Reduction::Sum, kIgnoredLabel) * scale;
}

void expect_near(const at::Tensor& ours, const at::Tensor& theirs, double relative, const char* what) {
  const double error = (ours - theirs).to(at::kDouble).norm().item<double>();
  EXPECT_LE(error, relative * theirs.to(at::kDouble).norm().item<double>()) << what;
}

void compare(Inputs in, double relative) {
  constexpr double kScale = 0.01;
  const at::Tensor expected = by_whole_logits(in, kScale);
  (expected * 3).backward();
  const at::Tensor x_gradient = std::exchange(in.x.mutable_grad(), {});
  const at::Tensor weight_gradient = std::exchange(in.weight.mutable_grad(), {});
  const at::Tensor loss =
      linear_cross_entropy_sum(in.x, in.weight, in.targets, {.ignored = kIgnoredLabel, .scale = kScale});
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
  (loss * 3).backward();
  expect_near(in.x.grad(), x_gradient, relative, "gradient of x");
  expect_near(in.weight.grad(), weight_gradient, relative, "gradient of the weight");
}

TEST(LinearCrossEntropy, HasTheLossAndGradientsOfWholeLogitsInOnePieceAndInSeveral) {
  compare(inputs(5, 8, 11), 1e-6);
  compare(inputs(1, 8, 1), 1e-6);
  ASSERT_GT(3000 * 4096 * 4, kLogitsBytes); // in pieces, the last one smaller
  compare(inputs(3000, 8, 4096), 1e-5);
}

TEST(LinearCrossEntropy, InBfloat16StaysAsCloseAsItsRounding) {
  compare(inputs(5, 8, 11, at::kBFloat16), 0.01);
  compare(inputs(3000, 8, 4096, at::kBFloat16), 0.01);
  ASSERT_GT(1000 * 16384 * 4, kLogitsBytes); // in pieces, of rows that are few beside the width
  compare(inputs(1000, 512, 16384, at::kBFloat16), 0.01);
}

TEST(LinearCrossEntropy, RowsWithoutATargetCostNothingAndGetAZeroGradient) {
  Inputs in = inputs(6, 8, 11);
  in.targets.index_put_({0}, kIgnoredLabel);
  in.targets.index_put_({4}, kIgnoredLabel);
  compare(in, 1e-6);
  EXPECT_TRUE(at::equal(in.x.grad()[4], at::zeros({8})));
  EXPECT_GT(in.x.grad()[3].abs().max().item<float>(), 0);
}

TEST(LinearCrossEntropy, WithoutAnyTargetIsZeroWithZeroGradients) {
  for (const std::int64_t rows : {0, 3}) {
    Inputs in = inputs(rows, 8, 11);
    in.targets.fill_(kIgnoredLabel);
    const at::Tensor loss = linear_cross_entropy_sum(in.x, in.weight, in.targets, {.ignored = kIgnoredLabel});
    EXPECT_EQ(loss.item<double>(), 0.0);
    loss.backward();
    EXPECT_TRUE(at::equal(in.x.grad(), at::zeros({rows, 8})));
    EXPECT_TRUE(at::equal(in.weight.grad(), at::zeros({11, 8})));
  }
}

TEST(LinearCrossEntropy, GivesTheSameGradientsAgainWhereTheGraphIsKept) {
  Inputs in = inputs(5, 8, 11);
  const at::Tensor loss = linear_cross_entropy_sum(in.x, in.weight, in.targets, {.ignored = kIgnoredLabel});
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = in.weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::equal(in.weight.grad(), once * 2));
}

TEST(LinearCrossEntropy, OfAFrozenHeadReachesTheHiddenStatesOnly) {
  Inputs in = inputs(5, 8, 11);
  in.weight.requires_grad_(false);
  linear_cross_entropy_sum(in.x, in.weight, in.targets, {.ignored = kIgnoredLabel}).backward();
  EXPECT_TRUE(in.x.grad().defined());
  EXPECT_FALSE(in.weight.grad().defined());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(linear_cross_entropy_sum(in.x, in.weight, in.targets, {.ignored = kIgnoredLabel}).requires_grad());
}

} // namespace
} // namespace tieshard::testing

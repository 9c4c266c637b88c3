#include <cmath>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/models/language_model.h"

namespace tieshard::testing {
namespace {

constexpr std::int64_t kVocab = 5;

at::Tensor logits(std::int64_t batch, std::int64_t length) {
  return at::sin(at::arange(batch * length * kVocab, at::kFloat)).view({batch, length, kVocab}) * 3;
}

/// The definition, in float64: logits[b, t] predicts labels[b, t + 1].
double by_definition(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) {
  double sum = 0;
  for (std::int64_t row = 0; row < labels_BT.size(0); ++row) {
    for (std::int64_t position = 1; position < labels_BT.size(1); ++position) {
      const auto target = labels_BT.index({row, position}).item<std::int64_t>();
      if (target == kIgnoredLabel) {
        continue;
      }
      const at::Tensor scores = logits_BTV.index({row, position - 1}).to(at::kDouble);
      sum += std::log(scores.exp().sum().item<double>()) - scores[target].item<double>();
    }
  }
  return sum;
}

TEST(CausalLmLoss, IsTheSumOverTargetsWhenRowsHaveUnequalNumbersOfThem) {
  const at::Tensor labels =
      at::tensor({0L, 1L, 2L, 3L, -100L, -100L, 4L, 0L, -100L, -100L, -100L, -100L}, at::kLong).view({3, 4});
  const at::Tensor scores = logits(3, 4);
  EXPECT_NEAR(causal_lm_loss_sum(scores, labels).item<double>(), by_definition(scores, labels), 1e-5);
  EXPECT_EQ(count_targets(labels), 5);
}

TEST(CausalLmLoss, DoesNotLookAtTheFirstLabelNorAtTheLastLogits) {
  const at::Tensor labels = at::tensor({0L, 1L, 2L}, at::kLong).view({1, 3});
  at::Tensor other = labels.clone();
  other.index_put_({0, 0}, kIgnoredLabel);
  at::Tensor scores = logits(1, 3);
  const double loss = causal_lm_loss_sum(scores, labels).item<double>();
  EXPECT_EQ(causal_lm_loss_sum(scores, other).item<double>(), loss);
  scores.index_put_({0, 2}, 100.0);
  EXPECT_EQ(causal_lm_loss_sum(scores, labels).item<double>(), loss);
  EXPECT_EQ(count_targets(other), count_targets(labels));
}

TEST(CausalLmLoss, WithoutTargetsIsZeroWithZeroGradientsAndNotNan) {
  for (const std::int64_t length : {1, 4}) {
    const at::Tensor scores = logits(2, length).requires_grad_(true);
    const at::Tensor labels = at::full({2, length}, kIgnoredLabel, at::kLong);
    const at::Tensor loss = causal_lm_loss_sum(scores, labels);
    EXPECT_EQ(loss.item<double>(), 0.0);
    EXPECT_EQ(count_targets(labels), 0);
    loss.backward();
    ASSERT_TRUE(scores.grad().defined());
    EXPECT_TRUE(at::equal(scores.grad(), at::zeros_like(scores)));
  }
}

TEST(CausalLmLoss, GivesGradientsOnlyWhereThereIsATarget) {
  const at::Tensor labels = at::tensor({0L, -100L, 2L, -100L}, at::kLong).view({1, 4});
  const at::Tensor scores = logits(1, 4).requires_grad_(true);
  causal_lm_loss_sum(scores, labels).backward();
  const at::Tensor touched = scores.grad().abs().sum(-1).view({-1}) > 0;
  EXPECT_TRUE(at::equal(touched, at::tensor({0, 1, 0, 0}, at::kInt).to(at::kBool)));
}

TEST(CausalLmLoss, IsComputedInFloat32FromBfloat16Logits) {
  const at::Tensor labels = at::tensor({0L, 1L, 2L, 3L, 4L, 0L}, at::kLong).view({1, 6});
  const at::Tensor scores = logits(1, 6).to(at::kBFloat16);
  const at::Tensor loss = causal_lm_loss_sum(scores, labels);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), by_definition(scores, labels), 1e-5);
}

} // namespace
} // namespace tieshard::testing

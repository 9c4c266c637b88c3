// The embedding of a weight with another use against at::embedding of the same weight.

#include "tieshard/runtime/models/shared_embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/models/linear_cross_entropy.h"

#include "tests/support/allocation_peak.h"

namespace tieshard::testing {
namespace {

constexpr std::int64_t kVocab = 7;
constexpr std::int64_t kHidden = 4;
constexpr std::int64_t kPadding = 3;

at::Tensor make_weight(at::ScalarType dtype = at::kFloat) {
  return at::sin(at::arange(kVocab * kHidden, at::kFloat)).view({kVocab, kHidden}).to(dtype).requires_grad_();
}

at::Tensor some_ids() {
  return at::tensor({1L, 5L, 1L, kPadding, 0L, 1L}, at::kLong).view({2, 3});
}

/// Squares, so that each place has a gradient of its own.
at::Tensor loss_of(const at::Tensor& rows) {
  return (rows * at::arange(1, 7, rows.options().requires_grad(false)).view({2, 3, 1})).square().sum();
}

/// By itself, beside a use with a gradient of its own, and added to what is there.
TEST(SharedEmbedding, HasTheGradientOfAnEmbedding) {
  for (const bool with_head : {false, true}) {
    for (const std::int64_t padding : {std::int64_t{-1}, kPadding}) {
      at::Tensor expected = make_weight();
      at::Tensor weight = make_weight();
      const SharedEmbedding embedding(weight);
      const auto head = [&](const at::Tensor& own) { return with_head ? own.pow(3).sum() : at::zeros({}); };
      for (int pass = 1; pass <= 2; ++pass) {
        (loss_of(at::embedding(expected, some_ids(), padding)) + head(expected)).backward();
        (loss_of(embedding.lookup(weight, some_ids(), padding)) + head(weight)).backward();
        ASSERT_EQ(weight.grad().layout(), at::kStrided);
        EXPECT_TRUE(at::allclose(weight.grad(), expected.grad(), 1e-6, 1e-6)) << with_head << padding << pass;
      }
    }
  }
}

TEST(SharedEmbedding, SumsEqualIdsInFloat32) {
  at::Tensor weight = at::ones({2, 1}, at::kBFloat16).requires_grad_();
  const SharedEmbedding embedding(weight);
  embedding.lookup(weight, at::zeros({1000}, at::kLong), -1).sum().backward();
  EXPECT_EQ(weight.grad()[0].item<double>(), 1000.0); // in bfloat16 the sum stays at 256
  EXPECT_EQ(weight.grad().scalar_type(), at::kBFloat16);
}

TEST(SharedEmbedding, MayBeLookedUpTwiceAndWalkedTwice) {
  at::Tensor expected = make_weight();
  at::Tensor weight = make_weight();
  const SharedEmbedding embedding(weight);
  const auto other = at::tensor({6L, 1L, 1L, 2L, 2L, 4L}, at::kLong).view({2, 3});
  const at::Tensor theirs =
      loss_of(at::embedding(expected, some_ids())) + loss_of(at::embedding(expected, other)) + expected.pow(3).sum();
  const at::Tensor ours = loss_of(embedding.lookup(weight, some_ids(), -1)) +
                          loss_of(embedding.lookup(weight, other, -1)) + weight.pow(3).sum();
  for (const bool keep : {true, false}) {
    theirs.backward({}, keep);
    ours.backward({}, keep);
    EXPECT_TRUE(at::allclose(weight.grad(), expected.grad(), 1e-6, 1e-6));
  }
}

TEST(SharedEmbedding, DoesNotChangeAGradientThatOthersHold) {
  at::Tensor weight = make_weight();
  at::Tensor other = at::zeros({kVocab, kHidden}).requires_grad_();
  const SharedEmbedding embedding(weight);
  const at::Tensor seed = at::ones({kVocab, kHidden});
  // the sum gives `seed` itself to both
  torch::autograd::backward({loss_of(embedding.lookup(weight, some_ids(), -1)), weight + other}, {at::ones({}), seed});
  EXPECT_TRUE(at::equal(other.grad(), at::ones({kVocab, kHidden})));
  EXPECT_TRUE(at::equal(seed, at::ones({kVocab, kHidden})));
  EXPECT_FALSE(at::equal(weight.grad(), seed));
}

TEST(SharedEmbedding, HasASecondDerivative) {
  at::Tensor expected = make_weight();
  at::Tensor weight = make_weight();
  const SharedEmbedding embedding(weight);
  const auto second = [](const at::Tensor& loss, const at::Tensor& leaf) {
    const at::Tensor first = torch::autograd::grad({loss}, {leaf}, {}, std::nullopt, /*create_graph=*/true).front();
    return torch::autograd::grad({first.square().sum()}, {leaf}).front();
  };
  EXPECT_TRUE(at::allclose(second(loss_of(embedding.lookup(weight, some_ids(), -1)).square(), weight),
                           second(loss_of(at::embedding(expected, some_ids())).square(), expected),
                           1e-4));
}

TEST(SharedEmbedding, OfAFrozenWeightOrWithoutGradModeIsALookup) {
  at::Tensor weight = make_weight();
  const SharedEmbedding embedding(weight);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(embedding.lookup(weight, some_ids(), -1).requires_grad());
  }
  weight.requires_grad_(false);
  EXPECT_FALSE(embedding.lookup(weight, some_ids(), -1).requires_grad());
  EXPECT_TRUE(at::equal(embedding.lookup(weight, some_ids(), -1), at::embedding(weight, some_ids())));
}

TEST(SharedEmbedding, IsAddedIntoTheHeadsGradientWithoutASecondWholeOne) {
  constexpr std::int64_t kMany = 4096;
  constexpr std::int64_t kWhole = kMany * 64 * 4;
  at::Tensor weight = at::full({kMany, 64}, 0.01).requires_grad_();
  const SharedEmbedding embedding(weight);
  const at::Tensor ids = at::arange(8, at::kLong);
  const at::Tensor loss = linear_cross_entropy_sum(
      embedding.lookup(weight, ids, -1), weight, ids, {.ignored = kIgnoredLabel, .scale = 1.0});
  const AllocationPeak peak; // the head's gradient is there already
  loss.backward();
  EXPECT_LE(peak.most(), kWhole / 8);
  EXPECT_TRUE(weight.grad().defined());
}

} // namespace
} // namespace tieshard::testing

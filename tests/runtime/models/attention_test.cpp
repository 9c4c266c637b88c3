// Attention with sinks, masks, caps and caches, against the scores written out.

#include "tieshard/runtime/models/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/models/kv_cache.h"

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

constexpr double kScale = 0.4;

struct Inputs {
  at::Tensor q, k, v, sinks;
};

/// 2 sequences of `length`, 4 query heads over 2 key/value heads of 8.
Inputs make_inputs(std::int64_t length, at::ScalarType dtype = at::kFloat) {
  const auto wave = [&](at::IntArrayRef shape, double step) {
    return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * step)
        .mul(1.5)
        .view(shape)
        .to(dtype)
        .requires_grad_(true);
  };
  return {.q = wave({2, 4, length, 8}, 0.71),
          .k = wave({2, 2, length, 8}, 1.37),
          .v = wave({2, 2, length, 8}, 2.11),
          .sinks = wave({4}, 0.9)};
}

/// Scores, mask, sink and softmax as matrices, in float64.
at::Tensor written_out(const Inputs& in, const at::Tensor& seen, double softcap, bool with_sinks) {
  const at::Tensor k = in.k.to(at::kDouble).repeat_interleave(2, 1);
  const at::Tensor v = in.v.to(at::kDouble).repeat_interleave(2, 1);
  at::Tensor scores = at::matmul(in.q.to(at::kDouble), k.transpose(2, 3)) * kScale;
  if (softcap > 0) {
    scores = at::tanh(scores / softcap) * softcap;
  }
  scores = scores.masked_fill(at::logical_not(seen), -std::numeric_limits<double>::infinity());
  at::Tensor total = scores.exp().sum(3, /*keepdim=*/true);
  if (with_sinks) {
    total = total + in.sinks.to(at::kDouble).exp().view({1, 4, 1, 1});
  }
  return at::matmul(scores.exp() / total, v);
}

void expect_equal(const AttentionMask& mask, const at::Tensor& seen, double softcap, bool with_sinks) {
  const std::int64_t length = seen.size(-1);
  const Inputs ours = make_inputs(length);
  const Inputs exact = make_inputs(length, at::kDouble);
  const at::Tensor y = attend(ours.q,
                              ours.k,
                              ours.v,
                              mask,
                              {.scale = kScale, .softcap = softcap, .sinks = with_sinks ? ours.sinks : at::Tensor()});
  const at::Tensor expected = written_out(exact, seen, softcap, with_sinks);
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected, 1e-5, 1e-6));
  const at::Tensor weights = at::cos(at::arange(y.numel(), at::kDouble)).view(y.sizes());
  (y * weights.to(at::kFloat)).sum().backward();
  (expected * weights).sum().backward();
  const auto compare = [](const at::Tensor& mine, const at::Tensor& other, const char* name) {
    EXPECT_TRUE(at::allclose(mine.grad().to(at::kDouble), other.grad(), 1e-4, 1e-5)) << name;
  };
  compare(ours.q, exact.q, "q");
  compare(ours.k, exact.k, "k");
  compare(ours.v, exact.v, "v");
  if (with_sinks) {
    compare(ours.sinks, exact.sinks, "sinks");
  }
}

at::Tensor causal(std::int64_t length) {
  return at::ones({length, length}, at::kBool).tril();
}

AttentionMask mask_of(std::int64_t length, std::int64_t window, const at::Tensor& documents = {}) {
  return make_attention_mask(length, {.window = window, .documents_BT = documents, .options = at::kFloat});
}

TEST(Attention, IsCausal) {
  const AttentionMask mask = mask_of(13, 0);
  EXPECT_FALSE(mask.bias.defined());
  expect_equal(mask, causal(13), 0, false);
}

TEST(Attention, SeesAWindowThatCountsTheQueryItself) {
  const at::Tensor seen = at::logical_and(causal(13), causal(13).triu(-3).tril()); // 4 keys
  expect_equal(mask_of(13, 4), seen, 0, false);
  EXPECT_FALSE(mask_of(4, 4).bias.defined()); // nothing to leave out
}

TEST(Attention, WithSinksHasTheValuesAndGradientsOfOneMoreLogit) {
  expect_equal(mask_of(13, 0), causal(13), 0, true);
  expect_equal(mask_of(13, 4), at::logical_and(causal(13), causal(13).triu(-3).tril()), 0, true);
  expect_equal(mask_of(150, 0), causal(150), 0, true); // several blocks of the kernel
}

TEST(Attention, CapsScoresBeforeTheMask) {
  expect_equal(mask_of(13, 0), causal(13), 2.0, false);
  expect_equal(mask_of(13, 4), at::logical_and(causal(13), causal(13).triu(-3).tril()), 2.0, true);
}

TEST(Attention, StaysInsideADocument) {
  const at::Tensor documents =
      at::tensor({0, 0, 0, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 3}, at::kLong).view({2, 9});
  const at::Tensor same = (documents.unsqueeze(2) == documents.unsqueeze(1)).unsqueeze(1);
  expect_equal(mask_of(9, 0, documents), at::logical_and(same, causal(9)), 0, false);
  expect_equal(mask_of(9, 0, documents), at::logical_and(same, causal(9)), 0, true);
}

TEST(Attention, WithSinksIsDifferentiatedOnce) {
  const Inputs in = make_inputs(5);
  const at::Tensor y = attend(in.q, in.k, in.v, mask_of(5, 0), {.scale = kScale, .sinks = in.sinks});
  expect_refusal([&] { y.sum().backward({}, std::nullopt, /*create_graph=*/true); }, Code::kWrongState, {});
}

TEST(TokenPositions, BeginAnewInEachDocument) {
  const at::Tensor documents = at::tensor({4, 4, 4, 5, 5, 7, 0, 0, 0, 0, 0, 0}, at::kLong).view({2, 6});
  const at::Tensor expected = at::tensor({0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 4, 5}, at::kLong).view({2, 6});
  EXPECT_TRUE(at::equal(token_positions(6, 0, documents, at::kCPU), expected));
  EXPECT_TRUE(at::equal(token_positions(3, 5, {}, at::kCPU), at::tensor({5, 6, 7}, at::kLong)));
}

TEST(KvCache, GivesAllKeysAndValuesSoFar) {
  KvCache cache(2, 5);
  const at::Tensor rows = at::arange(40, at::kFloat).view({1, 2, 5, 4});
  for (const std::int64_t layer : {0, 1}) {
    cache.append(layer, rows.narrow(2, 0, 3), -rows.narrow(2, 0, 3));
  }
  EXPECT_EQ(cache.length(), 0);
  cache.advance(3);
  const auto [keys, values] = cache.append(1, rows.narrow(2, 3, 2), -rows.narrow(2, 3, 2));
  EXPECT_TRUE(at::equal(keys, rows));
  EXPECT_TRUE(at::equal(values, -rows));
}

TEST(KvCache, RefusesMoreTokensOrLayersThanItWasMadeFor) {
  KvCache cache(1, 2);
  const at::Tensor rows = at::zeros({1, 1, 3, 4});
  expect_refusal([&] { cache.append(0, rows, rows); }, Code::kWrongState, {});
  expect_refusal([&] { cache.append(1, rows.narrow(2, 0, 1), rows.narrow(2, 0, 1)); }, Code::kWrongState, {});
}

} // namespace
} // namespace tieshard::testing

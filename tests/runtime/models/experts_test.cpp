// A mixture's experts, one by one or stacked: what a token goes through, and experts that nobody chose.

#include "tieshard/runtime/models/experts.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

DecoderConfig config_of(ExpertLayout layout) {
  DecoderConfig config;
  config.hidden_size = 6;
  config.experts = ExpertsConfig{.count = 8, .chosen = 2, .intermediate_size = 5, .layout = layout};
  return config;
}

template <typename Moe>
Moe make(ExpertLayout layout) {
  Moe moe(config_of(layout), at::TensorOptions(at::kFloat));
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : moe->parameters()) {
    parameter.copy_(at::sin(at::arange(parameter.numel(), at::kFloat) * 1.7).view_as(parameter));
  }
  return moe;
}

at::Tensor one_token() {
  return at::sin(at::arange(6, at::kFloat)).view({1, 1, 6});
}

template <typename Moe>
void expect_a_gradient_of_zeros_for_the_others(const Moe& moe) {
  Moe layer = moe;
  layer->forward(one_token()).square().sum().backward();
  for (const auto& named : layer->named_parameters()) {
    EXPECT_TRUE(named.value().grad().defined()) << named.key();
  }
}

TEST(SparseMoe, GivesAnExpertThatNoTokenChoseAGradientOfZeros) {
  SparseMoe moe = make<SparseMoe>(ExpertLayout::kMlpExperts);
  expect_a_gradient_of_zeros_for_the_others(moe);
  int zeros = 0;
  for (const auto& named : moe->named_parameters()) {
    zeros += static_cast<int>(named.key().find("up_proj") != std::string::npos &&
                              named.value().grad().count_nonzero().template item<std::int64_t>() == 0);
  }
  EXPECT_EQ(zeros, 6); // two of eight are chosen
}

TEST(StackedMoe, GivesAnExpertThatNoTokenChoseAGradientOfZeros) {
  StackedMoe moe = make<StackedMoe>(ExpertLayout::kStackedInterleaved);
  expect_a_gradient_of_zeros_for_the_others(moe);
  const at::Tensor gradient = moe->named_parameters()["experts.down_proj"].grad();
  EXPECT_EQ((gradient.abs().sum({1, 2}) > 0).sum().item<int>(), 2);
}

TEST(SparseMoe, IsTheWeightedSumOfItsChosenExperts) {
  SparseMoe moe = make<SparseMoe>(ExpertLayout::kBlockSparseMoe);
  const auto named = moe->named_parameters();
  const at::Tensor x = one_token().view({1, 6});
  const at::Tensor shares = at::softmax(at::matmul(x, named["gate.weight"].t()), 1);
  const auto [weights, chosen] = at::topk(shares, 2, 1);
  at::Tensor expected = at::zeros({1, 6});
  for (const int choice : {0, 1}) {
    const std::string expert = "experts." + std::to_string(chosen[0][choice].item<std::int64_t>());
    const auto times = [&](const at::Tensor& rows, const std::string& matrix) {
      return at::matmul(rows, named[expert + matrix + ".weight"].t());
    };
    expected =
        expected + weights[0][choice] / weights.sum() * times(at::silu(times(x, ".w1")) * times(x, ".w3"), ".w2");
  }
  EXPECT_TRUE(at::allclose(moe->forward(one_token()).view({1, 6}), expected, 1e-5, 1e-6));
}

TEST(SparseMoe, AddsASharedExpertTimesTheSigmoidOfItsGate) {
  DecoderConfig config = config_of(ExpertLayout::kMlpExperts);
  const auto made_of = [](const DecoderConfig& of) {
    SparseMoe moe(of, at::TensorOptions(at::kFloat));
    const at::NoGradGuard no_grad;
    for (const auto& named : moe->named_parameters()) {
      const double phase = static_cast<double>(named.key().size());
      named.value().copy_(at::sin(at::arange(named.value().numel(), at::kFloat) * 1.7 + phase).view_as(named.value()));
    }
    return moe;
  };
  SparseMoe alone = made_of(config);
  config.experts->shared_intermediate_size = 7;
  SparseMoe both = made_of(config);
  const auto named = both->named_parameters();
  const auto times = [&](const at::Tensor& rows, const std::string& matrix) {
    return at::matmul(rows, named[matrix + ".weight"].t());
  };
  const at::Tensor x = one_token();
  const at::Tensor shared = times(at::silu(times(x, "shared_expert.gate_proj")) * times(x, "shared_expert.up_proj"),
                                  "shared_expert.down_proj");
  const at::Tensor expected = alone->forward(x) + at::sigmoid(times(x, "shared_expert_gate")) * shared;
  EXPECT_TRUE(at::allclose(both->forward(x), expected, 1e-5, 1e-6));
  EXPECT_GT((both->forward(x) - alone->forward(x)).abs().max().item<float>(), 1e-2);
}

} // namespace
} // namespace tieshard::testing

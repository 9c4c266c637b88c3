// Products of groups of rows with stacked matrices, and the routing before and after them.

#include "tieshard/runtime/models/grouped_linear.h"

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/models/expert_routing.h"

namespace tieshard::testing {
namespace {

at::Tensor wave(at::IntArrayRef shape, double step) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kFloat) * step).view(shape).requires_grad_(true);
}

TEST(GroupedLinear, HasTheValuesAndGradientsOfOneProductAGroup) {
  const std::vector<std::int64_t> counts{3, 0, 4, 1}; // one group has no rows
  struct Leaves {
    at::Tensor x = wave({8, 6}, 0.7), weight = wave({4, 6, 5}, 1.3), bias = wave({4, 5}, 0.4);
  };
  const Leaves mine;
  const Leaves exact;
  const at::Tensor y = grouped_linear(mine.x, mine.weight, mine.bias, counts);
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (std::int64_t group = 0; group < 4; ++group) {
    const std::int64_t rows = counts[static_cast<std::size_t>(group)];
    parts.push_back(at::matmul(exact.x.narrow(0, first, rows), exact.weight[group]) + exact.bias[group]);
    first += rows;
  }
  const at::Tensor expected = at::cat(parts);
  EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-6));
  y.square().sum().backward();
  expected.square().sum().backward();
  EXPECT_TRUE(at::allclose(mine.x.grad(), exact.x.grad(), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(mine.weight.grad(), exact.weight.grad(), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(mine.bias.grad(), exact.bias.grad(), 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(mine.weight.grad()[1], at::zeros({6, 5})));
}

/// Rows 0 to 2 over four experts, of which each chooses two.
const at::Tensor kLogits =
    at::tensor({0.0F, 2.0F, 1.0F, -1.0F, 3.0F, 0.0F, 0.0F, 1.0F, -5.0F, 1.0F, 4.0F, -2.0F}).view({3, 4});

TEST(ExpertRouting, GroupsTheChoicesByExpertAndKeepsTokensInOrder) {
  const ExpertRouting routing = route(kLogits, {.count = 4, .chosen = 2});
  EXPECT_THAT(routing.counts, ::testing::ElementsAre(1, 2, 2, 1));
  EXPECT_TRUE(at::equal(routing.rows_M, at::tensor({1, 0, 2, 0, 2, 1}, at::kLong)));
}

TEST(ExpertRouting, WeighsByTheSoftmaxOverAllExpertsRenormalisedOrNotOrOverTheChosen) {
  const at::Tensor all = at::softmax(kLogits, 1);
  const auto weight_of_first = [](const ExpertsConfig& config) {
    return route(kLogits, config).weights_M[0].item<float>(); // expert 0, chosen by row 1
  };
  const float first = all[1][0].item<float>();
  const float second = all[1][3].item<float>();
  EXPECT_FLOAT_EQ(weight_of_first({.count = 4, .chosen = 2, .renormalise = false}), first);
  EXPECT_FLOAT_EQ(weight_of_first({.count = 4, .chosen = 2, .renormalise = true}), first / (first + second));
  EXPECT_FLOAT_EQ(weight_of_first({.count = 4, .chosen = 2, .layout = ExpertLayout::kStackedInterleaved}),
                  first / (first + second));
}

TEST(ExpertRouting, AddsUpWhatComesBackByToken) {
  const ExpertRouting routing = route(kLogits, {.count = 4, .chosen = 2});
  const at::Tensor x = wave({3, 5}, 0.3);
  EXPECT_TRUE(at::allclose(routing.combine(routing.dispatch(x), 3), x, 1e-5, 1e-6)); // the weights sum to one
}

} // namespace
} // namespace tieshard::testing

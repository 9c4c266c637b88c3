// Invariant 9: sharded over any number of ranks, on any dimension, with any reshard policy, a model has the losses,
// gradients and parameters of the unsharded one.

#include <torch/optim/sgd.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/mesh/collectives.h"

#include "tests/support/batch.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

constexpr int kSteps = 3;

struct Shapes {
  const char* name;
  TinyLlama model;
};

const Shapes kShapes[] = {
    {"Tied", {}},
    {"Untied", {.tied = false, .head = StoredHead::kDifferent}},
    // on four ranks: a last chunk that is smaller, one that is empty, and three empty ones
    {"UnevenAndEmpty", {.vocab = 7, .hidden = 5, .intermediate = 1, .heads = 1, .kv_heads = 1, .head_dim = 6}},
};

struct Trained {
  std::vector<double> losses;
  std::vector<Wholes> gradients; ///< of each step
  Wholes parameters;
};

torch::optim::SGD make_optimizer(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& named : unique_parameters(module)) {
    parameters.push_back(named.tensor);
  }
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Mean loss over the targets of the global batch, as far as it comes from `part`.
at::Tensor loss_of(LanguageModel& model, const Batch& part, const Batch& global) {
  return causal_lm_loss_sum(model.forward(part.ids), part.labels) / static_cast<double>(count_targets(global.labels));
}

Trained train_unsharded(LanguageModel& model, const Batch& batch) {
  Trained result;
  torch::optim::SGD optimizer = make_optimizer(model);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(model, batch, batch);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.gradients.push_back(gradients_of(model));
    optimizer.step();
  }
  result.parameters = values_of(model);
  return result;
}

void expect_trained_as(const Trained& expected, LanguageModel& model, const FsdpState& state, const Batch& batch) {
  torch::optim::SGD optimizer = make_optimizer(model);
  const Batch mine = part_of(batch, state.mesh());
  for (std::size_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(model, mine, batch);
    loss.backward();
    at::Tensor total = loss.detach().to(at::kDouble).reshape({1});
    all_reduce(state.mesh(), total);
    EXPECT_NEAR(total.item<double>(), expected.losses[step], 1e-6) << step;
    expect_resharded(state);
    expect_gradient_shards(state, expected.gradients[step], 2e-6);
    optimizer.step();
  }
  expect_shards(state, expected.parameters, 2e-6);
}

class ShardedTraining : public ::testing::TestWithParam<std::tuple<Shapes, int>> {};

TEST_P(ShardedTraining, EqualsTheUnshardedModelForEveryPolicy) {
  const auto& [shapes, ranks] = GetParam();
  const auto directory = write_tiny_llama("model", shapes.model);
  on_ranks(ranks, [&, vocab = shapes.model.vocab](const DeviceMesh& mesh) {
    const Batch batch = make_batch(3, 7, vocab);
    const Trained expected = train_unsharded(*load_whole(directory), batch);
    ASSERT_LT(expected.losses.back(), expected.losses.front());
    for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
      for (const bool reshard : {true, false}) {
        SCOPED_TRACE(concat("policy ", policy == ShardDimPolicy::kLast ? "last" : "first", ", reshard ", reshard));
        const PlannedLlama loaded = load_llama(directory, mesh, policy);
        const auto state = fully_shard(
            *loaded.model, loaded.plan, mesh, {.reshard_after_forward = reshard, .gradient_divide_factor = 1.0});
        expect_trained_as(expected, *loaded.model, *state, batch);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ShardedTraining,
                         ::testing::Combine(::testing::ValuesIn(kShapes), ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param).name, "_", std::get<1>(info.param), "ranks");
                         });

TEST(ShardedForward, IsTheUnshardedOneBitForBit) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(3, [&](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    const Batch batch = make_batch(2, 9, 37);
    const at::Tensor expected = load_whole(directory)->forward(batch.ids);
    const PlannedLlama loaded = load_llama(directory, mesh);
    fully_shard(*loaded.model, loaded.plan, mesh);
    EXPECT_TRUE(at::equal(loaded.model->forward(batch.ids), expected));
  });
}

TEST(ShardedForward, OfAModelThatWasWholeOnEveryRankIsTheSame) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(3, [&](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    const Batch batch = make_batch(2, 9, 37);
    const auto model = load_whole(directory); // fully_shard cuts it
    const at::Tensor expected = model->forward(batch.ids);
    const Wholes wholes = values_of(*model);
    const PlannedLlama planned = plan_llama(directory, mesh);
    const auto state = fully_shard(*model, planned.plan, mesh);
    expect_shards(*state, wholes, 0.0);
    EXPECT_TRUE(at::equal(model->forward(batch.ids), expected));
  });
}

} // namespace
} // namespace tieshard::testing

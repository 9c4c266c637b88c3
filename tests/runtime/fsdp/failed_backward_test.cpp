// A backward pass that throws must not make the next one wrong without a word.

#include <gtest/gtest.h>

#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/support/ranks.h"
#include "tests/support/tied_module.h"

namespace tieshard::testing {
namespace {

at::Tensor loss_of(TiedModule& module, FsdpState& state, bool fails) {
  const at::Tensor ids = at::arange(6, at::kLong).view({2, 3});
  const at::Tensor logits = state.run(module, ids, [&](const at::Tensor& x) {
    at::Tensor hidden = module.embed_tokens->forward(x);
    if (fails) {
      hidden.register_hook([](const at::Tensor&) { throw std::runtime_error("a user's hook fails"); });
    }
    return module.lm_head->forward(at::tanh(module.body->forward(hidden)));
  });
  return at::cross_entropy_loss(logits.view({-1, 11}), ids.view({-1}));
}

TEST(FailedBackward, TheNextStepHasTheGradientsOfARunThatNeverFailed) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [](const DeviceMesh& mesh) {
      const auto gradients = [&](bool fail_first) {
        torch::manual_seed(7);
        TiedModule module(11, 6);
        const ParameterTable table = parameter_table(module);
        const auto state =
            fully_shard(module, {{"", &module}}, ShardPlan::build(table, TieRegistry::of(table), mesh.size()), mesh);
        if (fail_first) {
          EXPECT_THROW(loss_of(module, *state, true).backward(), std::runtime_error);
        }
        loss_of(module, *state, false).backward();
        std::vector<at::Tensor> shards;
        for (const FsdpParam* parameter : state->managed()) {
          EXPECT_EQ(parameter->parameter().sizes(), parameter->shard().sizes()) << parameter->fqn();
          shards.push_back(parameter->parameter().grad());
        }
        return shards;
      };
      const std::vector<at::Tensor> expected = gradients(false);
      const std::vector<at::Tensor> found = gradients(true);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t index = 0; index < expected.size(); ++index) {
        ASSERT_TRUE(found[index].defined() && expected[index].defined());
        EXPECT_TRUE(at::equal(found[index], expected[index])) << index;
      }
    });
  }
}

} // namespace
} // namespace tieshard::testing

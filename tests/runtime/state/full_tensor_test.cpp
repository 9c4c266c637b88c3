#include "tieshard/runtime/state/full_tensor.h"

#include <gtest/gtest.h>

#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

class FullTensor : public ::testing::TestWithParam<int> {};

TEST_P(FullTensor, IsTheWholeOfUnevenAndEmptyShardsForBothPolicies) {
  const auto directory = write_tiny_llama(
      "model", {.vocab = 7, .hidden = 5, .intermediate = 1, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 6});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Wholes wholes = values_of(*load_whole(directory));
    for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
      const PlannedLlama loaded = load_llama(directory, mesh, policy);
      const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
      const std::vector<NamedTensor> full = full_state_dict(*state);
      ASSERT_EQ(full.size(), loaded.plan.parameters().size());
      for (std::size_t index = 0; index < full.size(); ++index) {
        EXPECT_EQ(full[index].fqn, loaded.plan.parameters()[index].fqn); // in registration order, no alias
        EXPECT_TRUE(at::equal(full[index].tensor, wholes.at(full[index].fqn))) << full[index].fqn;
      }
    }
  });
}

TEST_P(FullTensor, OfAGradientIsTheWholeGradient) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet plain_net;
    UnitRunner plain;
    plain_net.forward(small_input(0), plain).sum().backward();
    const Wholes expected = gradients_of(plain_net);
    SmallNet net;
    const auto state = shard_small_net(net, mesh); // the same input on every rank: their mean is each one's
    net.forward(small_input(0), *state).sum().backward();
    for (const FsdpParam* parameter : state->managed()) {
      if (const at::Tensor& gradient = parameter->parameter().grad(); gradient.defined()) {
        expect_close(full_tensor(mesh, state->plan(), *parameter, gradient),
                     expected.at(parameter->fqn()),
                     1e-5,
                     parameter->fqn());
      }
    }
  });
}

TEST_P(FullTensor, IsACopyAndKeepsTheDtype) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    net.to(at::kBFloat16);
    const auto state = shard_small_net(net, mesh);
    for (const FsdpParam* parameter : state->managed()) {
      at::Tensor whole = full_tensor(mesh, state->plan(), *parameter, parameter->shard());
      EXPECT_EQ(whole.scalar_type(), at::kBFloat16);
      EXPECT_FALSE(whole.requires_grad());
      EXPECT_FALSE(whole.is_alias_of(parameter->shard())) << parameter->fqn();
    }
  });
}

TEST_P(FullTensor, ShardsOfAStateDictAreTheParametersOwnMemoryAlsoWhileTheyAreWhole) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    std::vector<const void*> bytes;
    for (const NamedTensor& named : unique_parameters(net)) {
      bytes.push_back(named.tensor.const_data_ptr());
    }
    state->unshard();
    const std::vector<NamedTensor> shards = sharded_state_dict(*state);
    ASSERT_EQ(shards.size(), bytes.size());
    for (std::size_t index = 0; index < shards.size(); ++index) {
      EXPECT_EQ(shards[index].tensor.const_data_ptr(), bytes[index]) << shards[index].fqn;
    }
    state->reshard();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FullTensor, ::testing::Values(1, 2, 4), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing

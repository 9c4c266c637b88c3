// Sharding does not change which object a parameter is, and the whole parameters' memory is given back.

#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& named : unique_parameters(module)) {
    tensors.push_back(named.tensor);
  }
  return tensors;
}

class Identity : public ::testing::TestWithParam<int> {};

TEST_P(Identity, IsKeptThroughEveryStage) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const std::vector<at::Tensor> before = tensors_of(net);
    const auto state = shard_small_net(net, mesh);
    const auto expect_same = [&](const char* stage) {
      const std::vector<at::Tensor> now = tensors_of(net);
      ASSERT_EQ(now.size(), before.size()) << stage;
      for (std::size_t index = 0; index < now.size(); ++index) {
        EXPECT_TRUE(now[index].is_same(before[index])) << stage << " " << index;
        EXPECT_TRUE(now[index].is_leaf() && now[index].requires_grad()) << stage << " " << index;
      }
    };
    expect_same("fully_shard");
    const at::Tensor loss = net.forward(small_input(mesh.rank()), *state).sum();
    expect_same("forward");
    loss.backward();
    expect_same("backward");
    state->unshard();
    expect_same("unshard");
    state->reshard();
    expect_same("reshard");
    EXPECT_TRUE(net.scale.is_same(net.named_parameters()["scale"])); // the members are the registered ones
    EXPECT_TRUE(net.first->weight.is_same(net.named_parameters()["block.first.weight"]));
  });
}

TEST_P(Identity, TheBytesAreTheShardsAgainAfterEachStage) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool reshard : {true, false}) {
      SmallNet net;
      const Wholes wholes = values_of(net);
      const auto state = shard_small_net(net, mesh, {.reshard_after_forward = reshard});
      expect_resharded(*state);
      {
        const at::NoGradGuard no_grad;
        net.forward(small_input(mesh.rank()), *state);
      }
      expect_resharded(*state); // evaluation leaves nothing gathered
      expect_shards(*state, wholes, 0.0);
      net.forward(small_input(mesh.rank()), *state).sum().backward();
      expect_resharded(*state);
      expect_shards(*state, wholes, 0.0);
      net.forward(small_input(mesh.rank()), *state); // with a graph, but without a backward
      state->reshard();
      expect_resharded(*state);
      expect_shards(*state, wholes, 0.0);
    }
  });
}

TEST(WholeStorage, HasBytesOnlyWhileItsUnitNeedsThem) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    std::vector<std::pair<std::string, c10::Storage>> storages;
    state->unshard();
    for (const FsdpParam* parameter : state->managed()) {
      if (!parameter->replicated()) {
        storages.emplace_back(parameter->fqn(), parameter->parameter().storage());
        EXPECT_EQ(storages.back().second.nbytes(), static_cast<std::size_t>(numel(parameter->spec().shape)) * 4);
      }
    }
    state->reshard();
    ASSERT_EQ(storages.size(), 7U);
    const auto expect_bytes = [&](bool root_is_whole, const char* stage) {
      for (const auto& [fqn, storage] : storages) {
        const bool whole = root_is_whole && !fqn.starts_with("block.");
        EXPECT_EQ(storage.nbytes() > 0, whole) << fqn << " " << stage;
      }
    };
    expect_bytes(false, "resharded by hand");
    const at::Tensor loss = net.forward(small_input(mesh.rank()), *state).sum();
    expect_bytes(true, "after forward");
    loss.backward();
    expect_bytes(false, "after backward");
    {
      const at::NoGradGuard no_grad;
      net.forward(small_input(mesh.rank()), *state);
    }
    expect_bytes(false, "after evaluation");
    state->unshard(); // the same storage again, whatever refers to it
    for (const FsdpParam* parameter : state->managed()) {
      for (const auto& [fqn, storage] : storages) {
        if (fqn == parameter->fqn()) {
          EXPECT_TRUE(parameter->parameter().storage().is_alias_of(storage)) << fqn;
        }
      }
    }
    state->reshard();
  });
}

TEST(UnshardByHand, ShowsTheWholeAndReshardKeepsNoneOfTheChanges) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    SmallNet net;
    const Wholes wholes = values_of(net);
    const auto state = shard_small_net(net, mesh);
    state->unshard();
    for (const NamedTensor& named : unique_parameters(net)) {
      EXPECT_TRUE(at::equal(named.tensor.detach(), wholes.at(named.fqn))) << named.fqn;
    }
    state->unshard(); // whole already: nothing to do
    {
      const at::NoGradGuard no_grad;
      net.last->weight.fill_(7);
    }
    state->reshard();
    expect_resharded(*state);
    expect_shards(*state, wholes, 0.0);
    state->reshard();
    expect_shards(*state, wholes, 0.0);
  });
}

TEST(UnshardByHand, DoesNotDisturbATrainingStep) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet expected;
    const auto plain_state = shard_small_net(expected, mesh);
    expected.forward(small_input(mesh.rank()), *plain_state).sum().backward();
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    state->unshard();
    const at::Tensor loss = net.forward(small_input(mesh.rank()), *state).sum();
    state->unshard();
    state->reshard();
    loss.backward();
    for (const NamedTensor& named : unique_parameters(net)) {
      const at::Tensor wanted = expected.named_parameters()[named.fqn].grad();
      ASSERT_EQ(named.tensor.grad().defined(), wanted.defined()) << named.fqn;
      EXPECT_TRUE(!wanted.defined() || at::equal(named.tensor.grad(), wanted)) << named.fqn;
    }
  });
}

TEST(ShardsChangedInPlace, AreWhatTheNextForwardComputesWith) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    UnitRunner plain;
    SmallNet changed;
    for (const NamedTensor& named : unique_parameters(net)) {
      named.tensor.mul_(2); // as an optimizer or a loader does
      changed.named_parameters()[named.fqn].mul_(2);
    }
    EXPECT_TRUE(at::equal(net.forward(small_input(0), *state), changed.forward(small_input(0), plain)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Identity, ::testing::Values(1, 2), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing

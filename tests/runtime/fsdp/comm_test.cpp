// Which collectives a step needs: how many, in which order, of how many bytes.
//
// SmallNet in float32 on two ranks, over shared memory. Elements: root 26 (spare 5, last.weight 18, last.bias 3; the
// 0-dim scale is on every rank), block 42, block.first 30. A reduction has, beside the gradients, scale's and one flag
// for each parameter, once for each rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/collective_log.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

const std::string kGatherRoot = "all_gather 104";
const std::string kGatherBlock = "all_gather 168";
const std::string kGatherFirst = "all_gather 120";
const std::string kReduceRoot = "reduce_scatter 144";
const std::string kReduceBlock = "reduce_scatter 184";
const std::string kReduceFirst = "reduce_scatter 136";

at::Tensor loss_of(SmallNet& net, UnitRunner& runner, std::int64_t rank) {
  return net.forward(small_input(rank), runner).square().sum();
}

TEST(Comm, OfAStepGathersEachUnitTwiceAndReducesItOnceTheRootLast) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    CollectiveLog log;
    const at::Tensor loss = loss_of(net, *state, mesh.rank());
    EXPECT_THAT(log.take(), ::testing::ElementsAre(kGatherRoot, kGatherBlock, kGatherFirst));
    loss.backward();
    EXPECT_THAT(log.take(),
                ::testing::ElementsAre(kGatherBlock, kGatherFirst, kReduceFirst, kReduceBlock, kReduceRoot));
  });
}

TEST(Comm, WithoutReshardAfterForwardGathersEachUnitOnce) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = false});
    CollectiveLog log;
    loss_of(net, *state, mesh.rank()).backward();
    EXPECT_THAT(
        log.take(),
        ::testing::ElementsAre(kGatherRoot, kGatherBlock, kGatherFirst, kReduceFirst, kReduceBlock, kReduceRoot));
  });
}

TEST(Comm, OfAForwardWithoutGradModeIsTheGathersAlone) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    CollectiveLog log;
    loss_of(net, *state, mesh.rank());
    EXPECT_THAT(log.take(), ::testing::ElementsAre(kGatherRoot, kGatherBlock, kGatherFirst));
  });
}

TEST(Comm, InBfloat16HasHalfTheBytes) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state =
        shard_small_net(net, mesh, {.mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
    CollectiveLog log;
    loss_of(net, *state, mesh.rank());
    EXPECT_THAT(log.take(), ::testing::ElementsAre("all_gather 56", "all_gather 84", "all_gather 60")); // scale too
  });
}

TEST(Comm, OfOneRankIsNone) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    CollectiveLog log;
    loss_of(net, *state, mesh.rank()).backward();
    EXPECT_TRUE(log.take().empty());
  });
}

TEST(Prefetch, MovesGathersForwardAndAddsNone) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.forward_prefetch = 1, .backward_prefetch = 1});
    CollectiveLog log;
    std::vector<std::vector<bool>> seen;
    struct Watch : UnitRunner {
      at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) override {
        return state->run(unit, input, [&](const at::Tensor& x) {
          seen->push_back({});
          for (const auto& group : state->groups()) {
            seen->back().push_back(group->unsharded());
          }
          return forward(x);
        });
      }
      FsdpState* state = nullptr;
      std::vector<std::vector<bool>>* seen = nullptr;
    } watch;
    watch.state = state.get();
    watch.seen = &seen;
    loss_of(net, watch, mesh.rank()).backward(); // the first forward learns the order
    EXPECT_EQ(seen[1], (std::vector<bool>{true, true, false}));
    EXPECT_THAT(log.take(), ::testing::SizeIs(8));
    seen.clear();
    const at::Tensor loss = loss_of(net, watch, mesh.rank());
    EXPECT_EQ(seen[0], (std::vector<bool>{true, true, false})); // root begins: block is there
    EXPECT_EQ(seen[1], (std::vector<bool>{true, true, true}));
    EXPECT_THAT(log.take(), ::testing::ElementsAre(kGatherRoot, kGatherBlock, kGatherFirst));
    loss.backward(); // root brings block, block brings first: before the hooks of their own
    EXPECT_THAT(log.take(),
                ::testing::ElementsAre(kGatherBlock, kGatherFirst, kReduceFirst, kReduceBlock, kReduceRoot));
    expect_resharded(*state);
  });
}

TEST(Prefetch, OverGlooGivesTheSameBitsAsWithout) {
  on_ranks(
      3,
      [](const DeviceMesh& mesh) {
        SmallNet plain_net;
        SmallNet net;
        const auto plain = shard_small_net(plain_net, mesh);
        const auto state = shard_small_net(net, mesh, {.forward_prefetch = 2, .backward_prefetch = 2});
        for (int step = 0; step < 3; ++step) {
          loss_of(plain_net, *plain, mesh.rank()).backward();
          loss_of(net, *state, mesh.rank()).backward();
          for (std::size_t index = 0; index < state->managed().size(); ++index) {
            const at::Tensor& expected = plain->managed()[index]->parameter().grad();
            const at::Tensor& found = state->managed()[index]->parameter().grad();
            ASSERT_EQ(found.defined(), expected.defined());
            EXPECT_TRUE(!found.defined() || at::equal(found, expected)) << state->managed()[index]->fqn();
          }
        }
        expect_resharded(*state);
      },
      BackendChoice::kGloo);
}

TEST(Prefetch, OfAUnitThatThenDoesNotRunIsFreedAtTheEndOfTheForward) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.forward_prefetch = 2, .allow_idle_units = true});
    {
      const at::NoGradGuard no_grad;
      loss_of(net, *state, mesh.rank());
      state->run(net, small_input(0), [&](const at::Tensor& x) {
        EXPECT_TRUE(state->groups()[1]->unsharded());
        return x * net.scale;
      });
      expect_resharded(*state);
      EXPECT_THROW(state->run(net,
                              small_input(0),
                              [&](const at::Tensor&) -> at::Tensor { throw std::runtime_error("the user's mistake"); }),
                   std::runtime_error);
      expect_resharded(*state);
    }
    SmallNet expected;
    UnitRunner plain;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      (loss_of(expected, plain, rank) / 2.0).backward();
    }
    loss_of(net, *state, mesh.rank()).backward();
    expect_gradient_shards(*state, gradients_of(expected), 1e-5);
  });
}

} // namespace
} // namespace tieshard::testing

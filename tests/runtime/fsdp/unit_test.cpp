// Units inside each other: who owns what, and that each is whole only while it runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tied_module.h"

namespace tieshard::testing {
namespace {

std::vector<std::string> names(const FsdpParamGroup& group) {
  std::vector<std::string> list;
  for (const FsdpParam& parameter : group.parameters()) {
    list.push_back(parameter.fqn());
  }
  return list;
}

TEST(Units, OwnTheParametersThatNoUnitFurtherInsideOwns) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    ASSERT_EQ(state->groups().size(), 3U);
    EXPECT_THAT(names(*state->groups()[0]),
                ::testing::UnorderedElementsAre("scale", "spare", "last.weight", "last.bias"));
    EXPECT_THAT(names(*state->groups()[1]), ::testing::ElementsAre("block.second.weight", "block.second.bias"));
    EXPECT_THAT(names(*state->groups()[2]), ::testing::ElementsAre("block.first.weight", "block.first.bias"));
  });
}

TEST(Units, MeetInTheRootForATiedWeight) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const std::vector<UnitModule> units{
        {"", &module}, {"embed_tokens", module.embed_tokens.get()}, {"lm_head", module.lm_head.get()}};
    const auto state = fully_shard(module, units, plan_of(module, mesh), mesh);
    EXPECT_THAT(names(*state->groups()[0]), ::testing::Contains("embed_tokens.weight"));
    EXPECT_TRUE(names(*state->groups()[1]).empty());
    EXPECT_TRUE(names(*state->groups()[2]).empty());
  });
}

TEST(Units, DoNotTakeWhatOnlyBeginsWithTheirName) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    torch::nn::Module root;
    const auto one = root.register_module("layer1", torch::nn::Linear(4, 4));
    root.register_module("layer10", torch::nn::Linear(4, 4));
    const auto state = fully_shard(root, {{"", &root}, {"layer1", one.get()}}, plan_of(root, mesh), mesh);
    EXPECT_THAT(names(*state->groups()[0]), ::testing::ElementsAre("layer10.weight", "layer10.bias"));
    EXPECT_THAT(names(*state->groups()[1]), ::testing::ElementsAre("layer1.weight", "layer1.bias"));
  });
}

TEST(Units, AreWholeOnlyWhileTheyRun) {
  struct Watch : UnitRunner { // around the state: sees what is gathered when a unit's forward begins
    at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) override {
      return state->run(unit, input, [&](const at::Tensor& x) {
        std::vector<bool> whole;
        for (const auto& group : state->groups()) {
          whole.push_back(group->unsharded());
        }
        seen.push_back(whole);
        return forward(x);
      });
    }
    std::shared_ptr<FsdpState> state;
    std::vector<std::vector<bool>> seen;
  };
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    Watch watch;
    watch.state = shard_small_net(net, mesh);
    net.forward(small_input(0), watch);
    ASSERT_EQ(watch.seen.size(), 3U); // root, block, layer
    EXPECT_EQ(watch.seen[0], (std::vector<bool>{true, false, false}));
    EXPECT_EQ(watch.seen[1], (std::vector<bool>{true, true, false}));
    EXPECT_EQ(watch.seen[2], (std::vector<bool>{true, true, true}));
    EXPECT_TRUE(watch.state->groups()[0]->unsharded()); // its backward comes first
    EXPECT_FALSE(watch.state->groups()[1]->unsharded());
    EXPECT_FALSE(watch.state->groups()[2]->unsharded());
  });
}

TEST(Units, StayWholeUntilTheirBackwardIfTheyAreToldTo) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = false});
    const at::Tensor loss = net.forward(small_input(mesh.rank()), *state).sum();
    for (const auto& group : state->groups()) {
      EXPECT_TRUE(group->unsharded()) << group->name();
    }
    loss.backward();
    expect_resharded(*state);
  });
}

TEST(Units, ThatAreNoneAreCalledThrough) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    torch::nn::Linear stranger(4, 2);
    const at::Tensor x = small_input(0);
    EXPECT_TRUE(at::equal(state->run(*stranger, x, [&](const at::Tensor& y) { return stranger->forward(y); }),
                          stranger->forward(x)));
    expect_resharded(*state);
  });
}

TEST(Units, ThatAreWrappedInPartGiveTheSameGradients) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet plain_net;
    UnitRunner plain;
    plain_net.forward(small_input(0), plain).square().sum().backward();
    const Wholes expected = gradients_of(plain_net);
    SmallNet net;
    const auto state = fully_shard(net, {{"block", net.block.get()}}, plan_of(net, mesh), mesh);
    net.forward(small_input(0), *state).square().sum().backward();
    ASSERT_EQ(state->managed().size(), 4U); // those of the block; the rest is the user's
    expect_gradient_shards(*state, expected, 1e-5);
    EXPECT_TRUE(at::allclose(net.last->weight.grad(), expected.at("last.weight"), 1e-5, 1e-6));
  });
}

} // namespace
} // namespace tieshard::testing

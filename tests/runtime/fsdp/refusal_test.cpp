// What fully_shard refuses, and what happens to a state whose module is changed behind its back.

#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tied_module.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

TEST(FullyShard, RefusesAPlanForAnotherNumberOfRanks) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const ShardPlan plan = plan_of(net, DeviceMesh());
    expect_refusal(
        [&] { fully_shard(net, net.units(), plan, mesh); }, Code::kBadRankCount, {mesh.where(), "expected 2, got 1"});
  });
}

TEST(FullyShard, RefusesAShapeThatIsNeitherWholeNorThisRanksShard) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const ShardPlan plan = plan_of(net, mesh);
    net.last->weight.set_data(at::ones({3, 5}));
    expect_refusal([&] { fully_shard(net, net.units(), plan, mesh); },
                   Code::kForeignShape,
                   {"last.weight", "expected [3, 6] or [3, 3], got [3, 5]"});
  });
}

TEST(FullyShard, RefusesAModelThatIsShardedAlready) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
    EXPECT_EQ(sharded_state(*loaded.model), state);
    expect_refusal([&] { fully_shard(*loaded.model, loaded.plan, mesh); }, Code::kAlreadySharded, {"sharded_state"});
  });
}

TEST(FullyShard, RefusesUnitsThatAreMissingEmptyOrGivenTwice) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    SmallNet net;
    const ShardPlan plan = plan_of(net, mesh);
    expect_refusal([&] { fully_shard(net, {}, plan, mesh); }, Code::kWrongState, {"no unit"});
    expect_refusal(
        [&] { fully_shard(net, {{"", &net}, {"block", nullptr}}, plan, mesh); }, Code::kWrongState, {"block"});
    expect_refusal([&] { fully_shard(net, {{"", &net}, {"block", &net}}, plan, mesh); }, Code::kWrongState, {"block"});
  });
}

TEST(FullyShard, RefusesAPlanOfAnotherModule) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    SmallNet net;
    TiedModule other(11, 4);
    expect_refusal([&] { fully_shard(net, net.units(), plan_of(other, mesh), mesh); },
                   Code::kTieUnknownName,
                   {"embed_tokens.weight"});
    torch::nn::Linear layer(4, 4);
    expect_refusal(
        [&] { fully_shard(net, net.units(), plan_of(*layer, mesh), mesh); }, Code::kUnknownParameter, {"weight"});
  });
}

TEST(FullyShard, RefusesATieThatWasBrokenAfterThePlanWasMade) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const ShardPlan plan = plan_of(module, mesh);
    module.lm_head =
        module.replace_module("lm_head", std::make_shared<TiedHead>(module.embed_tokens->weight.detach().clone()));
    expect_refusal([&] { fully_shard(module, {{"", &module}}, plan, mesh); },
                   Code::kTieNotShared,
                   {"embed_tokens.weight", "lm_head.weight"});
  });
}

TEST(ShardedModule, RefusesToRunWithAParameterThatWasGivenOtherStorage) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    net.second->weight.set_data(net.second->weight.detach().clone());
    expect_refusal(
        [&] { net.forward(small_input(0), *state); }, Code::kWrongState, {"block.second.weight", "copy_", "set_data"});
  });
}

TEST(ShardedModule, RefusesToRunAfterItsDtypeWasChanged) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh);
    net.to(at::kDouble);
    expect_refusal([&] { net.forward(small_input(0).to(at::kDouble), *state); }, Code::kWrongState, {"Module::to()"});
  });
}

} // namespace
} // namespace tieshard::testing

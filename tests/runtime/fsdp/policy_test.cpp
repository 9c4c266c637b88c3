// What the options of a unit change: frozen parameters, resharding to fewer ranks, policies of single units, offload.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/collective_log.h"
#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

at::Tensor loss_of(SmallNet& net, UnitRunner& runner, std::int64_t rank) {
  return net.forward(small_input(rank), runner).square().sum();
}

void freeze(const torch::nn::Module& module) {
  for (const NamedTensor& named : unique_parameters(module)) {
    named.tensor.set_requires_grad(false);
  }
}

/// Mean gradients over the ranks of one pass each; `frozen` of the net requires none.
Wholes reference(std::int64_t ranks, const std::function<void(SmallNet&)>& prepare = {}) {
  SmallNet net;
  if (prepare) {
    prepare(net);
  }
  UnitRunner plain;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    (loss_of(net, plain, rank) / static_cast<double>(ranks)).backward();
  }
  return gradients_of(net);
}

TEST(Frozen, ParametersAreGatheredButNotReduced) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    net.first->weight.set_requires_grad(false);
    const auto state = shard_small_net(net, mesh);
    CollectiveLog log;
    loss_of(net, *state, mesh.rank()).backward();
    EXPECT_THAT(log.take(), ::testing::Contains("reduce_scatter 32")); // block.first.bias 3 and its flag, 2 ranks
    expect_gradient_shards(
        *state, reference(2, [](SmallNet& plain) { plain.first->weight.set_requires_grad(false); }), 1e-5);
  });
}

TEST(Frozen, UnitsAreNotReducedAtAllAndGradientsPassThroughThem) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    freeze(*net.first);
    const auto state = shard_small_net(net, mesh);
    CollectiveLog log;
    loss_of(net, *state, mesh.rank()).backward();
    EXPECT_THAT(log.take(), ::testing::Contains(::testing::StartsWith("reduce_scatter")).Times(2)); // root, block
    expect_resharded(*state);
    expect_gradient_shards(*state, reference(2, [](SmallNet& plain) { freeze(*plain.first); }), 1e-5);
    EXPECT_TRUE(net.scale.grad().defined()); // before the frozen unit
  });
}

TEST(Frozen, ParametersMayBeThawedBetweenSteps) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    freeze(*net.first);
    const auto state = shard_small_net(net, mesh);
    loss_of(net, *state, mesh.rank()).backward();
    for (const NamedTensor& named : unique_parameters(net)) {
      named.tensor.mutable_grad().reset();
      named.tensor.set_requires_grad(true);
    }
    loss_of(net, *state, mesh.rank()).backward();
    expect_gradient_shards(*state, reference(2), 1e-5);
  });
}

TEST(ReshardAfterForward, ToFewerRanksGathersFromTheNeighboursInBackward) {
  on_ranks(4, [](const DeviceMesh& mesh) {
    for (const auto compute : {at::kFloat, at::kBFloat16}) {
      SmallNet expected;
      const FullyShardOptions all{.mp_policy = {.param_dtype = compute, .reduce_dtype = at::kFloat}};
      const auto expected_state = shard_small_net(expected, mesh, all);
      loss_of(expected, *expected_state, mesh.rank()).backward();
      SmallNet net;
      FullyShardOptions options = all;
      options.reshard_after_forward = 2;
      const auto state = shard_small_net(net, mesh, options);
      CollectiveLog log;
      const at::Tensor loss = loss_of(net, *state, mesh.rank());
      EXPECT_FALSE(state->groups()[1]->unsharded());
      EXPECT_THAT(log.take(), ::testing::SizeIs(3));
      loss.backward();
      const std::int64_t size = compute == at::kFloat ? 4 : 2;
      std::vector<std::string> gathers = log.take();
      std::erase_if(gathers, [](const std::string& call) { return !call.starts_with("all_gather"); });
      // block has 42 elements and block.first 30, each in two halves; from four ranks it would be 56 and 32, padded
      EXPECT_THAT(gathers, ::testing::ElementsAre(concat("all_gather ", 42 * size), concat("all_gather ", 30 * size)));
      for (const NamedTensor& named : unique_parameters(net)) {
        const at::Tensor wanted = expected.named_parameters()[named.fqn].grad();
        ASSERT_EQ(named.tensor.grad().defined(), wanted.defined()) << named.fqn;
        EXPECT_TRUE(!wanted.defined() || at::equal(named.tensor.grad(), wanted)) << named.fqn;
      }
      expect_resharded(*state);
    }
  });
}

TEST(ReshardAfterForward, ToFewerRanksFollowsAChangeOfTheShards) {
  on_ranks(4, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.reshard_after_forward = 2});
    loss_of(net, *state, mesh.rank()); // leaves parts behind, without a backward
    SmallNet changed;
    {
      const at::NoGradGuard no_grad;
      for (const FsdpParam* parameter : state->managed()) {
        parameter->shard().mul_(0.5);
        changed.named_parameters()[parameter->fqn()].mul_(0.5);
      }
    }
    state->reshard();
    UnitRunner plain;
    EXPECT_TRUE(at::allclose(loss_of(net, *state, 0), loss_of(changed, plain, 0)));
  });
}

TEST(ReshardAfterForward, ToANumberThatDoesNotDivideTheRanksIsRefused) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    for (const std::int64_t count : {0, 3, -1}) {
      expect_refusal([&] { shard_small_net(net, mesh, {.reshard_after_forward = count}); },
                     Code::kBadRankCount,
                     {mesh.where(), concat("expected a divisor of 2, got ", count)});
    }
  });
}

TEST(ReshardAfterForward, ToOneRankKeepsAndToAllFrees) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    for (const std::int64_t count : {1, 2}) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh, {.reshard_after_forward = count});
      const at::Tensor loss = loss_of(net, *state, mesh.rank());
      EXPECT_EQ(state->groups()[1]->unsharded(), count == 1);
      loss.backward();
      expect_gradient_shards(*state, reference(2), 1e-5);
    }
  });
}

TEST(PerUnit, OptionsChangeThatUnitOnly) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    FullyShardOptions options;
    options.per_unit["block.first"] = {
        .mp_policy = MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .output_dtype = at::kFloat},
        .reshard_after_forward = false};
    const auto state = shard_small_net(net, mesh, options);
    struct Watch : UnitRunner {
      at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) override {
        const at::Tensor output = state->run(unit, input, [&](const at::Tensor& x) {
          seen += concat(c10::toString(x.scalar_type()), " ");
          return forward(x);
        });
        seen += concat(c10::toString(output.scalar_type()), " ");
        return output;
      }
      FsdpState* state = nullptr;
      std::string seen;
    } watch;
    watch.state = state.get();
    const at::Tensor loss = loss_of(net, watch, mesh.rank());
    EXPECT_EQ(watch.seen, "Float Float BFloat16 Float Float Float "); // in: root, block, first; out: first, block, root
    EXPECT_FALSE(state->groups()[1]->unsharded());
    EXPECT_TRUE(state->groups()[2]->unsharded());
    loss.backward();
    EXPECT_EQ(net.first->weight.grad().scalar_type(), at::kFloat);
    const Wholes expected = reference(2);
    expect_gradient_shards(*state, expected, 0.1 * expected.at("last.weight").abs().max().item<double>());
  });
}

TEST(PerUnit, NamesHaveToBeUnits) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    SmallNet net;
    FullyShardOptions options;
    options.per_unit["block.second"] = {.reshard_after_forward = false};
    expect_refusal([&] { shard_small_net(net, mesh, options); }, Code::kUnknownUnit, {"block.second"});
  });
}

TEST(Offload, LeavesShardsOfACpuModelWhereTheyAre) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.offload_policy = {.to_host = true}});
    std::vector<const void*> before;
    for (const FsdpParam* parameter : state->managed()) {
      before.push_back(parameter->shard().const_data_ptr());
    }
    loss_of(net, *state, mesh.rank()).backward();
    expect_gradient_shards(*state, reference(2), 1e-5);
    std::size_t index = 0;
    for (const FsdpParam* parameter : state->managed()) {
      EXPECT_TRUE(parameter->shard().device().is_cpu());
      EXPECT_EQ(parameter->parameter().const_data_ptr(), before[index++]) << parameter->fqn();
    }
  });
}

} // namespace
} // namespace tieshard::testing

// HSDP on a grid of 2 x 2 ranks: shards within a replica, gradients summed over both axes.

#include <torch/optim/sgd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/batch.h"
#include "tests/support/collective_log.h"
#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/user_t5.h"

namespace tieshard::testing {
namespace {

constexpr int kSteps = 10;

at::Tensor loss_of(SmallNet& net, UnitRunner& runner, std::int64_t rank) {
  return net.forward(small_input(rank), runner).square().sum();
}

torch::optim::SGD make_sgd(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& named : unique_parameters(module)) {
    tensors.push_back(named.tensor);
  }
  return torch::optim::SGD(tensors, torch::optim::SGDOptions(0.05).momentum(0.9));
}

class Hsdp : public ::testing::TestWithParam<MeshGrid> {};

TEST_P(Hsdp, TrainsAsTheUnshardedModelForTenSteps) {
  on_grid(GetParam(), [](const DeviceMesh& mesh) {
    UserT5 expected;
    UserT5 model;
    UnitRunner plain;
    torch::optim::SGD expected_optimizer = make_sgd(expected);
    torch::optim::SGD optimizer = make_sgd(model);
    const auto state =
        fully_shard(model, mesh, {.unit_policy = units_of_class<UserEncoderLayerImpl, UserDecoderLayerImpl>()});
    for (int step = 0; step < kSteps; ++step) {
      expected_optimizer.zero_grad();
      for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
        (user_t5_loss(expected, user_t5_ids(rank), plain) / static_cast<double>(mesh.size())).backward();
      }
      optimizer.zero_grad();
      user_t5_loss(model, user_t5_ids(mesh.rank()), *state).backward();
      expect_gradient_shards(*state, gradients_of(expected), 2e-5);
      expected_optimizer.step();
      optimizer.step();
    }
    expect_shards(*state, values_of(expected), 5e-5);
  });
}

INSTANTIATE_TEST_SUITE_P(Grids,
                         Hsdp,
                         ::testing::Values(MeshGrid{2, 2}, MeshGrid{2, 1}, MeshGrid{1, 2}, MeshGrid{1, 1}),
                         [](const auto& info) { return concat(info.param.replicas, "x", info.param.shards); });

TEST(HsdpComm, GathersAndReducesInTheReplicaThenSumsOverReplicas) {
  on_grid({2, 2}, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = fully_shard(net, std::vector<UnitModule>{{"", &net}}, mesh);
    CollectiveLog log;
    loss_of(net, *state, mesh.rank()).backward();
    // 98 elements beside the 0-dim one, of which the first shards have 50; 8 parameters with a flag each
    const int mine = mesh.axis("dp_shard").rank() == 0 ? 50 : 48;
    EXPECT_THAT(log.take_with_axis(),
                ::testing::ElementsAre("dp_shard all_gather 392",
                                       "dp_shard reduce_scatter 464",
                                       concat("dp_replicate all_reduce ", 4 * (mine + 1 + 8))));
  });
}

TEST(HsdpMesh, HasTheAxesOfItsGrid) {
  on_grid({2, 2}, [](const DeviceMesh& mesh) {
    ASSERT_EQ(mesh.axes().size(), 2U);
    EXPECT_EQ(mesh.axes()[0].name, "dp_replicate");
    EXPECT_EQ(mesh.axes()[1].name, "dp_shard");
    const DeviceMesh shard = mesh.axis("dp_shard");
    const DeviceMesh replicate = mesh.axis("dp_replicate");
    EXPECT_EQ(replicate.rank() * 2 + shard.rank(), mesh.rank());
    EXPECT_EQ(shard.where(), concat("rank ", mesh.rank(), "/4"));
    at::Tensor sum = at::full({1}, mesh.rank());
    all_reduce(shard, sum);
    EXPECT_EQ(sum.item<std::int64_t>(), replicate.rank() == 0 ? 0 + 1 : 2 + 3);
    sum.fill_(mesh.rank());
    all_reduce(replicate, sum);
    EXPECT_EQ(sum.item<std::int64_t>(), shard.rank() == 0 ? 0 + 2 : 1 + 3);
    expect_refusal([&] { mesh.axis("tp"); }, Code::kWrongState, {"tp", "dp_shard"});
  });
}

TEST(HsdpMesh, OfAnotherSizeThanTheRanksIsRefused) {
  on_ranks(1, [](const DeviceMesh&) {
    expect_refusal([] { DeviceMesh::connect({.world_size = 4}, std::chrono::seconds(1), {2, 3}); },
                   Code::kBadEnvironment,
                   {"expected 4 places, got 2 x 3"});
    expect_refusal([] { DeviceMesh::connect({.world_size = 4}, std::chrono::seconds(1), {4, 0}); },
                   Code::kBadEnvironment,
                   {"got 4 x 0"});
  });
}

TEST(HsdpMesh, OfOneAxisIsItsOwnShardAxisAndHasOneReplica) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    EXPECT_EQ(mesh.axis("dp_shard").size(), 2);
    EXPECT_EQ(mesh.axis("dp_replicate").size(), 1);
    EXPECT_EQ(mesh.axis("dp_replicate").rank(), 0);
  });
}

TEST(HsdpLoad, GivesEachReplicaTheShardsOfItsRanksAndTrainsAlike) {
  const auto directory = write_tiny_llama("model", {});
  on_grid({2, 2}, [&](const DeviceMesh& mesh) {
    const Batch batch = make_batch(4, 7, 37);
    const auto whole = load_whole(directory);
    const PlannedLlama loaded = load_llama(directory, mesh);
    const auto state = fully_shard(*loaded.model, loaded.plan, mesh, {.gradient_divide_factor = 1.0});
    expect_shards(*state, values_of(*whole), 0.0);
    const double targets = static_cast<double>(count_targets(batch.labels));
    (causal_lm_loss_sum(whole->forward(batch.ids), batch.labels) / targets).backward();
    const Batch mine = part_of(batch, mesh);
    (causal_lm_loss_sum(loaded.model->forward(mine.ids), mine.labels) / targets).backward();
    expect_gradient_shards(*state, gradients_of(*whole), 2e-6);
  });
}

} // namespace
} // namespace tieshard::testing

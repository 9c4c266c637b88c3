// Ranks whose modules, options or forwards differ. What they exchange would have as many bytes, so nothing else tells.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace tieshard::testing {
namespace {

/// One weight, whose parts have 6 elements on each of two ranks for 3 and for 4 columns.
struct OneWeight : torch::nn::Module {
  explicit OneWeight(std::int64_t columns, at::ScalarType dtype = at::kFloat, const std::string& name = "w") {
    weight = register_parameter(name, at::ones({3, columns}, dtype), /*requires_grad=*/at::isFloatingType(dtype));
  }
  at::Tensor weight;
};

/// What rank 1 has in place of what rank 0 has, and what the refusal names.
struct Difference {
  std::function<std::shared_ptr<torch::nn::Module>(bool other)> make;
  std::function<FullyShardOptions(bool other)> options;
  std::vector<std::string> named;
};

FullyShardOptions no_options(bool) {
  return {};
}

class SameModule : public ::testing::TestWithParam<BackendChoice> {};

TEST_P(SameModule, IsAskedOfAllRanksWhenTheyShard) {
  const auto plain = [](bool) { return std::make_shared<OneWeight>(4); };
  const std::vector<Difference> differences = {
      {[](bool other) { return std::make_shared<OneWeight>(other ? 3 : 4); },
       no_options,
       {"parameter w", "[3, 4]", "on rank 0", "[3, 3]", "on rank 1"}},
      {[](bool other) { return std::make_shared<OneWeight>(4, at::kFloat, other ? "v" : "w"); },
       no_options,
       {"parameter w", "not given on rank 1", "parameter v is not given on rank 0"}},
      {[](bool other) { return std::make_shared<OneWeight>(4, other ? at::kInt : at::kFloat); },
       no_options,
       {"parameter w", "Float", "on rank 0", "Int"}},
      {[](bool other) {
         auto module = std::make_shared<OneWeight>(4);
         module->weight.requires_grad_(!other);
         return module;
       },
       no_options,
       {"parameter w", "frozen", "on rank 1"}},
      {plain,
       [](bool other) { return FullyShardOptions{.gradient_divide_factor = other ? 1.0 : 2.0}; },
       {"gradient_divide_factor is 2 on rank 0, 1 on rank 1"}},
      {plain,
       [](bool other) { return FullyShardOptions{.reshard_after_forward = ReshardAfterForward(!other)}; },
       {"reshard_after_forward is true on rank 0, false on rank 1"}},
      {plain,
       [](bool other) {
         return FullyShardOptions{.shard_dim = other ? ShardDimPolicy::kFirst : ShardDimPolicy::kLast};
       },
       {"parameter w", "on dim 1", "on dim 0"}},
  };
  on_ranks(
      2,
      [&](const DeviceMesh& mesh) {
        const bool other = mesh.rank() == 1;
        for (const Difference& difference : differences) {
          std::vector<std::string> named = difference.named;
          named.push_back(mesh.where());
          const auto module = difference.make(other);
          expect_refusal([&] { fully_shard(*module, mesh, difference.options(other)); }, Code::kWrongState, named);
        }
        OneWeight same(4); // nothing of it stays behind
        EXPECT_NO_THROW(fully_shard(same, mesh));
      },
      GetParam());
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         SameModule,
                         ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo),
                         [](const auto& info) { return info.param == BackendChoice::kShm ? "shm" : "gloo"; });

TEST(SameModuleOverReplicas, IsAskedOfEveryReplica) {
  on_grid({.replicas = 2, .shards = 2}, [](const DeviceMesh& mesh) {
    OneWeight module(mesh.rank() == 3 ? 3 : 4);
    expect_refusal(
        [&] { fully_shard(module, mesh); }, Code::kWrongState, {"parameter w", "on ranks 0, 1 and 2", "on rank 3"});
  });
}

/// Layers of one size, of which each rank leaves another one out.
struct Layers : torch::nn::Module {
  Layers() {
    torch::manual_seed(3);
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module(concat("layer", i), torch::nn::Linear(4, 4)));
    }
  }
  std::vector<torch::nn::Linear> layers;
};

TEST(SameUnits, RanksThatRunDifferentUnitsAreRefusedAndBothUnitsNamed) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Layers net;
    const auto state =
        fully_shard(net, mesh, {.unit_policy = units_of_class<torch::nn::LinearImpl>(), .allow_idle_units = true});
    const std::size_t left_out = mesh.rank() == 0 ? 0 : 1;
    const auto forward = [&] {
      return state->run(net, small_input(0), [&](const at::Tensor& input) {
        at::Tensor x = input;
        for (std::size_t i = 0; i < net.layers.size(); ++i) {
          if (i != left_out) {
            x = state->run(*net.layers[i], x, [&](const at::Tensor& y) { return net.layers[i]->forward(y); });
          }
        }
        return x;
      });
    };
    expect_refusal(forward, Code::kCollectiveFailed, {"unit layer0", "unit layer1", "rank 0", "rank 1"});
  });
}

} // namespace
} // namespace tieshard::testing

// fully_shard on modules of the user's own, without a checkpoint or a plan.

#include <torch/optim/adamw.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tied_module.h"
#include "tests/support/user_t5.h"

namespace tieshard::testing {
namespace {

constexpr int kSteps = 10;

std::vector<std::string> names(const FsdpParamGroup& group) {
  std::vector<std::string> list;
  for (const FsdpParam& parameter : group.parameters()) {
    list.push_back(parameter.fqn());
  }
  return list;
}

torch::optim::AdamW make_adamw(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& named : unique_parameters(module)) {
    tensors.push_back(named.tensor);
  }
  return torch::optim::AdamW(tensors, torch::optim::AdamWOptions(1e-2));
}

/// One step of the unsharded model on the ids of every rank: what the mean over ranks trains with.
void reference_step(UserT5& model, torch::optim::AdamW& optimizer, std::int64_t ranks) {
  UnitRunner plain;
  optimizer.zero_grad();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    (user_t5_loss(model, user_t5_ids(rank), plain) / static_cast<double>(ranks)).backward();
  }
}

UnitPolicy layers_of_t5() {
  return units_of_class<UserEncoderLayerImpl, UserDecoderLayerImpl>();
}

class UserModule : public ::testing::TestWithParam<int> {};

TEST_P(UserModule, OfT5sShapeTrainsAsTheUnshardedOneForTenSteps) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    UserT5 expected;
    UserT5 model;
    torch::optim::AdamW expected_optimizer = make_adamw(expected);
    torch::optim::AdamW optimizer = make_adamw(model); // built before
    const auto state = fully_shard(model, mesh, {.unit_policy = layers_of_t5()});
    ASSERT_EQ(state->groups().size(), 5U);
    for (int step = 0; step < kSteps; ++step) {
      reference_step(expected, expected_optimizer, mesh.size());
      optimizer.zero_grad();
      user_t5_loss(model, user_t5_ids(mesh.rank()), *state).backward();
      expect_resharded(*state);
      expect_gradient_shards(*state, gradients_of(expected), 2e-5);
      expected_optimizer.step();
      optimizer.step();
    }
    expect_shards(*state, values_of(expected), 1e-4);
  });
}

TEST_P(UserModule, OfT5sShapeHoldsItsFourNamesInTheRootOnce) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    UserT5 model;
    const auto state = fully_shard(model, mesh, {.unit_policy = layers_of_t5()});
    EXPECT_THAT(names(*state->groups()[0]), ::testing::ElementsAre("shared.weight"));
    EXPECT_THAT(state->plan().ties().aliases("shared.weight"),
                ::testing::UnorderedElementsAre(
                    "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"));
    EXPECT_TRUE(state->findings().empty());
    EXPECT_TRUE(model.lm_head->weight.is_same(model.shared->weight));
  });
}

TEST_P(UserModule, WithoutAUnitPolicyIsOneUnit) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const auto state = fully_shard(module, mesh);
    ASSERT_EQ(state->groups().size(), 1U);
    EXPECT_THAT(names(*state->groups()[0]),
                ::testing::UnorderedElementsAre("embed_tokens.weight", "body.weight", "body.bias"));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, UserModule, ::testing::Values(1, 2, 3, 4), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

/// Two towers that share a matrix inside `pair`; a third part outside.
struct Towers : torch::nn::Module {
  Towers() {
    torch::manual_seed(3);
    pair = register_module("pair", std::make_shared<torch::nn::Module>("Pair"));
    left = pair->register_module("left", torch::nn::Linear(4, 4));
    right = pair->register_module("right", std::make_shared<TiedHead>(left->weight));
    last = register_module("last", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x, UnitRunner& runner) {
    return runner.run(*this, x, [&](const at::Tensor& input) {
      const at::Tensor both = runner.run(*pair, input, [&](const at::Tensor& y) {
        const at::Tensor half = runner.run(*left, y, [&](const at::Tensor& z) { return left->forward(z).tanh(); });
        return runner.run(*right, half, [&](const at::Tensor& z) { return right->forward(z); });
      });
      return last->forward(both);
    });
  }
  std::shared_ptr<torch::nn::Module> pair;
  torch::nn::Linear left{nullptr}, last{nullptr};
  std::shared_ptr<TiedHead> right;
};

TEST(SharedParameters, OfTwoUnitsLieInTheInnermostUnitAroundBoth) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Towers expected;
    UnitRunner plain;
    expected.forward(small_input(0), plain).square().sum().backward();
    Towers module;
    const auto state = fully_shard(module, mesh, {.unit_policy = units_named({"pair", "pair.left", "pair.right"})});
    ASSERT_EQ(state->groups().size(), 4U);
    EXPECT_THAT(names(*state->groups()[1]), ::testing::ElementsAre("pair.left.weight"));
    EXPECT_THAT(names(*state->groups()[2]), ::testing::ElementsAre("pair.left.bias"));
    EXPECT_TRUE(names(*state->groups()[3]).empty());
    module.forward(small_input(0), *state).square().sum().backward();
    expect_gradient_shards(*state, gradients_of(expected), 1e-5);
  });
}

TEST(SharedModules, RegisteredTwiceAreOneUnitThatOwnsAllNamesOfItsParameters) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    torch::nn::Module root;
    const torch::nn::Linear layer(4, 4);
    root.register_module("first", layer.ptr());
    root.register_module("second", layer.ptr());
    const auto state = fully_shard(root, mesh, {.unit_policy = units_of_class<torch::nn::LinearImpl>()});
    ASSERT_EQ(state->groups().size(), 2U);
    EXPECT_THAT(names(*state->groups()[1]), ::testing::ElementsAre("first.weight", "first.bias"));
  });
}

TEST(ShardingTwice, IsRefusedForAnyModuleByTheNameOfAParameter) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    auto state = fully_shard(net, mesh);
    expect_refusal([&] { fully_shard(net, mesh); }, Code::kAlreadySharded, {"scale"});
    state.reset(); // the shards are left
    expect_refusal([&] { fully_shard(*net.block, mesh); }, Code::kAlreadySharded, {"first.weight"});
  });
}

TEST(Unmanaged, ParametersAreNamedInTheFindings) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = fully_shard(net, std::vector<UnitModule>{{"block", net.block.get()}}, mesh);
    std::vector<std::string> outside;
    for (const Diagnostic& finding : state->findings()) {
      EXPECT_EQ(finding.code, Code::kUnmanagedParameter);
      EXPECT_EQ(finding.level, Level::kWarning);
      outside.push_back(finding.where);
    }
    EXPECT_THAT(outside, ::testing::UnorderedElementsAre("scale", "spare", "last.weight", "last.bias"));
  });
}

TEST(Ignored, ParametersStayWholeAndUnmanagedByNameAliasOrTensor) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    for (const bool by_tensor : {false, true}) {
      TiedModule module(11, 6);
      FullyShardOptions options;
      if (by_tensor) {
        options.ignored_tensors = {module.embed_tokens->weight};
      } else {
        options.ignored = {"lm_head.weight"}; // an alias
      }
      const auto state = fully_shard(module, mesh, options);
      EXPECT_THAT(names(*state->groups()[0]), ::testing::UnorderedElementsAre("body.weight", "body.bias"));
      EXPECT_EQ(module.embed_tokens->weight.sizes().vec(), (std::vector<std::int64_t>{11, 6}));
      ASSERT_EQ(state->findings().size(), 1U);
      EXPECT_EQ(state->findings()[0].level, Level::kNote);
      EXPECT_EQ(state->findings()[0].where, "embed_tokens.weight");
    }
    TiedModule module(11, 6);
    expect_refusal([&] { fully_shard(module, mesh, {.ignored = {"head"}}); }, Code::kUnknownParameter, {"head"});
    expect_refusal(
        [&] { fully_shard(module, mesh, {.ignored_tensors = {at::ones({3})}}); }, Code::kUnknownParameter, {"[3]"});
  });
}

TEST(IdleUnits, AreRefusedAtTheEndOfTheForwardUnlessAllowed) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    for (const bool allowed : {false, true}) {
      SmallNet net;
      const auto state = fully_shard(net, mesh, {.unit_policy = units_named({"block"}), .allow_idle_units = allowed});
      const auto around = [&] {
        state->run(net, small_input(0), [&](const at::Tensor& x) { return x * net.scale; }); // block is left out
      };
      if (allowed) {
        around();
      } else {
        expect_refusal(around, Code::kWrongState, {mesh.where(), "block", "allow_idle_units"});
      }
      state->reshard();
      expect_resharded(*state);
    }
  });
}

TEST(UnitsWithSeveralTensors, MayHaveUndefinedIntegerAndUnusedOnes) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    torch::manual_seed(2);
    torch::nn::Linear layer(4, 4);
    const at::Tensor weight = layer->weight.detach().clone();
    const auto state = fully_shard(*layer, mesh, {.mp_policy = {.output_dtype = at::kDouble}});
    const at::Tensor one = small_input(0).requires_grad_(true);
    const at::Tensor two = small_input(1).requires_grad_(true);
    const std::vector<at::Tensor> outputs =
        state->run_tensors(*layer, {one, at::Tensor(), at::arange(3), two}, [&](const std::vector<at::Tensor>& inputs) {
          EXPECT_FALSE(inputs[1].defined());
          EXPECT_EQ(inputs[2].scalar_type(), at::kLong);
          return std::vector<at::Tensor>{layer->forward(inputs[0]), inputs[3] * 2, at::arange(2), at::Tensor()};
        });
    ASSERT_EQ(outputs.size(), 4U);
    EXPECT_EQ(outputs[0].scalar_type(), at::kDouble);
    EXPECT_EQ(outputs[2].scalar_type(), at::kLong);
    outputs[0].sum().backward(); // the second output has no part in it
    EXPECT_TRUE(at::allclose(one.grad(), at::ones({3, 4}).matmul(weight)));
    EXPECT_FALSE(two.grad().defined() && two.grad().abs().sum().item<double>() > 0);
    expect_resharded(*state);
  });
}

} // namespace
} // namespace tieshard::testing

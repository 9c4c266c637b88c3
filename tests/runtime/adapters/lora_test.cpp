#include "tieshard/runtime/adapters/lora.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/adapters/adapter_weights.h"
#include "tieshard/runtime/adapters/weight_overlay.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/models/layers.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/state/full_tensor.h"

#include "tests/support/adapted_llama.h"
#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

constexpr const char* kA = "model.layers.0.self_attn.q_proj.lora_A.weight";
constexpr const char* kB = "model.layers.0.self_attn.q_proj.lora_B.weight";

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  return tensors;
}

LoraPlan plan_of(const torch::nn::Module& module, LoraConfig config) {
  const ParameterTable table = parameter_table(module);
  return plan_lora(config, adaptable_modules(module), table, TieRegistry::of(table));
}

TEST(AddLora, RegistersPeftsNamesBesideTheWeightWithWholeSizes) {
  const auto directory = write_tiny_llama("model", {});
  const auto model = load_whole(directory);
  add_lora(*model, lora_plan_for(directory, lora_on({"q_proj", "down_proj"})));
  const auto tensors = tensors_of(*model);
  EXPECT_EQ(tensors.at(kA).sizes().vec(), (std::vector<std::int64_t>{3, 12}));
  EXPECT_EQ(tensors.at(kB).sizes().vec(), (std::vector<std::int64_t>{12, 3}));
  EXPECT_EQ(tensors.at("model.layers.1.mlp.down_proj.lora_A.weight").sizes().vec(), (std::vector<std::int64_t>{3, 20}));
}

TEST(AddLora, OnlyTheAdapterAndTheModulesToSaveKeepAGradient) {
  const auto directory = write_tiny_llama("model", {});
  const auto model = load_whole(directory);
  LoraConfig config = lora_on({"q_proj"});
  config.modules_to_save = {"model.norm"};
  add_lora(*model, lora_plan_for(directory, config));
  for (const auto& [fqn, tensor] : tensors_of(*model)) {
    EXPECT_EQ(tensor.requires_grad(), fqn.find("lora_") != std::string::npos || fqn == "model.norm.weight") << fqn;
  }
}

TEST(AddLora, ANewAdapterChangesNoLogit) {
  const auto directory = write_tiny_llama("model", {});
  const auto model = load_whole(directory);
  const at::Tensor ids = at::arange(10, at::kLong).view({2, 5});
  const at::Tensor before = model->forward(ids);
  add_lora(*model, lora_plan_for(directory, lora_on({"q_proj", "v_proj", "down_proj"})));
  EXPECT_TRUE(at::equal(model->forward(ids), before));
  EXPECT_GT(tensors_of(*model).at(kA).abs().max().item<float>(), 0);
  EXPECT_EQ(tensors_of(*model).at(kB).abs().max().item<float>(), 0);
}

TEST(AddLora, TheUpdateIsScalingTimesBAOfTheInput) {
  LinearImpl layer(4, 5, /*with_bias=*/true, at::kFloat);
  for (at::Tensor parameter : {layer.weight, layer.bias}) {
    parameter.set_requires_grad(false);
    parameter.uniform_(-1, 1);
  }
  const at::Tensor a = at::randn({2, 4}).requires_grad_();
  const at::Tensor b = at::randn({5, 2}).requires_grad_();
  const at::Tensor x = at::randn({3, 4}).requires_grad_();
  const auto gradients = [&](const at::Tensor& y) {
    y.square().sum().backward();
    std::vector<at::Tensor> taken;
    for (const at::Tensor& leaf : {a, b, x}) {
      taken.push_back(leaf.grad().clone());
      leaf.mutable_grad().reset();
    }
    return taken;
  };
  const at::Tensor expected = at::linear(x, layer.weight + 0.5 * b.matmul(a), layer.bias);
  const auto expected_gradients = gradients(expected);
  layer.update = LowRankUpdate{.a = a, .b = b, .scaling = 0.5};
  const at::Tensor found = layer.forward(x);
  EXPECT_TRUE(at::allclose(found, expected, 1e-5, 1e-5));
  const auto found_gradients = gradients(found);
  for (std::size_t leaf = 0; leaf < 3; ++leaf) {
    EXPECT_TRUE(at::allclose(found_gradients[leaf], expected_gradients[leaf], 1e-4, 1e-4)) << leaf;
  }
}

TEST(AddLora, DropoutIsOfTheAdaptersInputInTrainModeOnly) {
  LinearImpl layer(64, 3, /*with_bias=*/false, at::kFloat);
  layer.weight.set_requires_grad(false);
  layer.weight.zero_();
  layer.update = LowRankUpdate{.a = at::ones({1, 64}), .b = at::ones({3, 1}), .dropout = 0.5};
  const at::Tensor x = at::ones({1, 64});
  layer.eval();
  EXPECT_TRUE(at::equal(layer.forward(x), at::full({1, 3}, 64.0)));
  layer.train();
  at::manual_seed(3);
  const at::Tensor first = layer.forward(x);
  EXPECT_FALSE(at::equal(first, at::full({1, 3}, 64.0)));
  at::manual_seed(3);
  EXPECT_TRUE(at::equal(layer.forward(x), first));
}

TEST(AddLora, IsRefusedForWhatIsNotThereOrHasOneAlready) {
  const auto directory = write_tiny_llama("model", {});
  const auto model = load_whole(directory);
  LoraPlan plan = lora_plan_for(directory, lora_on({"q_proj"}));
  add_lora(*model, plan);
  expect_refusal([&] { add_lora(*model, plan); }, Code::kWrongState, {"model.layers.0.self_attn.q_proj"});
  plan.targets.front().module = "model.layers.7.self_attn.q_proj";
  const auto other = load_whole(directory);
  expect_refusal([&] { add_lora(*other, plan); }, Code::kUnknownTarget, {"model.layers.7.self_attn.q_proj"});
}

TEST(AddLora, ASecondPlanIsRefusedAlsoForOtherModulesSinceItWouldFreezeTheFirst) {
  const auto directory = write_tiny_llama("model", {});
  const LoraPlan first = lora_plan_for(directory, lora_on({"q_proj"}));
  const LoraPlan second = lora_plan_for(directory, lora_on({"v_proj"}));
  const auto model = load_whole(directory);
  add_lora(*model, first);
  expect_refusal([&] { add_lora(*model, second); }, Code::kWrongState, {"q_proj", "all targets in one plan"});
  EXPECT_TRUE(tensors_of(*model).at(kA).requires_grad());
  EXPECT_FALSE(tensors_of(*model).contains("model.layers.0.self_attn.v_proj.lora_A.weight"));
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
    add_lora(*state, first);
    expect_refusal([&] { add_lora(*state, second); }, Code::kWrongState, {"q_proj"});
    EXPECT_EQ(OptimizerGuard(state).trainable().size(), 4U); // two layers, A and B
  });
}

TEST(AddLora, AModuleOfTheUsersOwnMayHoldTheLayers) {
  struct Net : torch::nn::Module {
    Net() {
      embed = register_module("embed", Embedding(7, 4, std::nullopt, at::kFloat));
      fc = register_module("fc", Linear(4, 5, /*with_bias=*/false, at::kFloat));
    }
    Embedding embed{nullptr};
    Linear fc{nullptr};
  };
  const auto net = std::make_shared<Net>();
  const std::vector<AdaptableModule> modules = adaptable_modules(*net);
  ASSERT_EQ(modules.size(), 2U);
  EXPECT_TRUE(modules[0].embedding);
  EXPECT_EQ(modules[0].in, 7);
  add_lora(*net, plan_of(*net, lora_on({"embed", "fc"})));
  const auto tensors = tensors_of(*net);
  EXPECT_EQ(tensors.at("embed.lora_embedding_A").sizes().vec(), (std::vector<std::int64_t>{3, 7}));
  EXPECT_EQ(tensors.at("fc.lora_B.weight").sizes().vec(), (std::vector<std::int64_t>{5, 3}));
}

struct LibtorchNet : torch::nn::Module {
  LibtorchNet() {
    embed = register_module("embed", torch::nn::Embedding(7, 4));
    fc = register_module("fc", torch::nn::Linear(4, 5));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const WeightOverlay adapters(*this);
    return fc(embed(ids));
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear fc{nullptr};
};

TEST(AddLora, LayersOfLibtorchTakeAnOverlayWithTheSameSumsAndGradients) {
  at::manual_seed(1);
  const auto net = std::make_shared<LibtorchNet>();
  add_lora(*net, plan_of(*net, lora_on({"embed", "fc"})));
  auto tensors = tensors_of(*net);
  {
    const at::NoGradGuard no_grad;
    for (const char* name :
         {"embed.lora_embedding_A", "embed.lora_embedding_B", "fc.lora_A.weight", "fc.lora_B.weight"}) {
      tensors.at(name).normal_();
    }
  }
  const at::Tensor ids = at::tensor({1, 3, 3});
  const double scaling = 2.0; // alpha 6, r 3
  const at::Tensor rows =
      at::embedding(tensors.at("embed.weight") +
                        scaling * tensors.at("embed.lora_embedding_B").matmul(tensors.at("embed.lora_embedding_A")).t(),
                    ids);
  const at::Tensor expected = at::linear(
      rows,
      tensors.at("fc.weight") + scaling * tensors.at("fc.lora_B.weight").matmul(tensors.at("fc.lora_A.weight")),
      tensors.at("fc.bias"));
  EXPECT_TRUE(at::allclose(net->forward(ids), expected));
  net->forward(ids).square().sum().backward();
  const at::Tensor found = tensors.at("fc.lora_A.weight").grad().clone();
  tensors.at("fc.lora_A.weight").mutable_grad().reset();
  expected.square().sum().backward();
  EXPECT_TRUE(at::allclose(found, tensors.at("fc.lora_A.weight").grad(), 1e-4, 1e-4));
  EXPECT_TRUE(net->fc->weight.is_same(tensors.at("fc.weight"))) << "the member is the parameter again";
  LoraConfig dropping = lora_on({"fc"});
  dropping.dropout = 0.1;
  const auto other = std::make_shared<LibtorchNet>();
  expect_refusal([&] { add_lora(*other, plan_of(*other, dropping)); }, Code::kWrongState, {"fc", "dropout"});
}

TEST(AddLora, AnOverlayThatFailsHalfWayLeavesEveryWeightAsItWas) {
  const auto net = std::make_shared<LibtorchNet>();
  add_lora(*net, plan_of(*net, lora_on({"embed", "fc"})));
  auto tensors = tensors_of(*net);
  tensors.at("fc.lora_A.weight").set_data(at::zeros({3, 9})); // fits no longer; embed comes first
  EXPECT_THROW(net->forward(at::tensor({1, 3})), c10::Error);
  EXPECT_TRUE(net->embed->weight.is_same(tensors.at("embed.weight")));
  EXPECT_TRUE(net->fc->weight.is_same(tensors.at("fc.weight")));
}

TEST(AddLoraOnRanks, LayersOfLibtorchTrainShardedAsUnsharded) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const auto make = [] {
      at::manual_seed(4);
      auto net = std::make_shared<LibtorchNet>();
      add_lora(*net, plan_of(*net, lora_on({"embed", "fc"})));
      return net;
    };
    const at::Tensor ids = at::tensor({1, 3, 3, 6});
    const auto alone = make();
    alone->forward(ids).square().mean().backward();
    const auto net = make();
    const auto state = fully_shard(*net, mesh);
    state->run(*net, ids, [&](const at::Tensor& x) { return net->forward(x); }).square().mean().backward();
    auto expected = tensors_of(*alone);
    for (const FsdpParam* parameter : state->managed()) {
      const at::Tensor& whole = expected.at(parameter->fqn()).grad();
      ASSERT_EQ(parameter->parameter().grad().defined(), whole.defined()) << parameter->fqn();
      if (whole.defined()) {
        const ChunkRange range = state->plan().range(parameter->spec(), mesh.rank());
        EXPECT_TRUE(at::allclose(
            parameter->parameter().grad(), whole.narrow(parameter->spec().dim, range.offset, range.size), 1e-4, 1e-6))
            << parameter->fqn();
      }
    }
  });
}

/// Initial values are the same whenever the adapter comes, and however many ranks there are.
TEST(AddLoraOnRanks, BeforeLoadingAfterItAndAfterFullyShardAreTheSameAdapter) {
  const auto directory = write_tiny_llama("model", {});
  const LoraPlan lora = lora_plan_for(directory, lora_on({"q_proj", "down_proj"}));
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [&](const DeviceMesh& mesh) {
      const auto check = [&](const std::shared_ptr<FsdpState>& state, const std::string& when) {
        EXPECT_TRUE(state->findings().empty()) << when;
        std::int64_t found = 0;
        for (const FsdpParam* parameter : state->managed()) {
          for (const NamedInit& init : lora_inits(lora)) {
            if (init.fqn == parameter->fqn()) {
              const at::Tensor whole = full_tensor(mesh, state->plan(), *parameter, parameter->shard());
              EXPECT_TRUE(at::equal(whole, initial_values(init, parameter->spec().shape, at::kFloat)))
                  << when << init.fqn;
              ++found;
            }
          }
        }
        EXPECT_EQ(found, 8) << when; // two layers, two modules, A and B
        EXPECT_EQ(OptimizerGuard(state).trainable().size(), 8U) << when;
      };
      {
        const PlannedLlama planned = plan_llama(directory, mesh);
        add_lora(*planned.model, lora);
        const ShardPlan plan = ShardPlan::build(parameter_table(*planned.model), planned.ties, mesh.size());
        load_shards(*planned.model, planned.checkpoint, plan, mesh, {.sources = {lora_inits(lora)}});
        check(fully_shard(*planned.model, plan, mesh), "before loading ");
      }
      {
        const PlannedLlama loaded = load_llama(directory, mesh);
        const ShardPlan plan = loaded.plan.extended(add_lora(*loaded.model, lora));
        check(fully_shard(*loaded.model, plan, mesh), "after loading ");
      }
      {
        const PlannedLlama loaded = load_llama(directory, mesh);
        const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
        expect_refusal([&] { add_lora(*loaded.model, lora); }, Code::kWrongState, {"add_lora(*state, plan)"});
        add_lora(*state, lora);
        check(state, "after fully_shard ");
      }
    });
  }
}

TEST(AddLoraOnRanks, AnOptimizerFromBeforeIsToldThatItLeavesTheAdapterOut) {
  const auto directory = write_tiny_llama("model", {});
  const LoraPlan lora = lora_plan_for(directory, lora_on({"q_proj"}));
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
    auto optimizer =
        std::make_unique<torch::optim::AdamW>(OptimizerGuard(state).trainable(), torch::optim::AdamWOptions(1e-3));
    add_lora(*state, lora);
    expect_refusal(
        [&] { OptimizerGuard(state).adopt(std::move(optimizer)); }, Code::kOptimizerParameter, {kA, "frozen"});
  });
}

TEST(AddLoraOnRanks, AGuardFromBeforeAdmitsTheAdapter) {
  const auto directory = write_tiny_llama("model", {});
  const LoraPlan lora = lora_plan_for(directory, lora_on({"q_proj"}));
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
    const OptimizerGuard guard(state);
    auto early = guard.build<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3));
    add_lora(*state, lora);
    EXPECT_EQ(guard.trainable().size(), 4U);
    EXPECT_NO_THROW(guard.build<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3)).step());
    early.drop_frozen(); // the base
    early.add_param_group(torch::optim::OptimizerParamGroup(guard.trainable()));
    EXPECT_NO_THROW(early.step());
    for (const SlotReport& slot : early.report()) {
      EXPECT_EQ(slot.kind, SlotKind::kManaged) << slot.name;
    }
  });
}

TEST(AddLoraOnRanks, WhatNoUnitHoldsCannotBeManaged) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    std::vector<UnitModule> units = loaded.model->units();
    units.erase(units.begin()); // a partial wrap: the layers without the root
    const auto state = fully_shard(*loaded.model, units, loaded.plan, mesh);
    loaded.model->register_parameter("lora", at::zeros({2, 4}));
    const auto manage = [&](const char* fqn) { state->manage_added({{.fqn = fqn, .shape = {2, 4}}}); };
    expect_refusal([&] { manage("lora"); }, Code::kWrongState, {"lora", "no unit holds it"});
    expect_refusal([&] { manage("nothing"); }, Code::kUnknownParameter, {"nothing"});
    EXPECT_EQ(state->plan().find("lora"), nullptr);
  });
}

TEST(AddLoraOnRanks, AnAdapterThatIsRegisteredByHandAfterFullyShardIsRefusedByTheGuard) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const PlannedLlama loaded = load_llama(directory, mesh);
    const auto state = fully_shard(*loaded.model, loaded.plan, mesh);
    loaded.model->register_parameter("lora_A", at::zeros({2, 3}));
    expect_refusal([&] { OptimizerGuard(state).trainable(); }, Code::kOptimizerParameter, {"lora_A", "not managed"});
  });
}

} // namespace
} // namespace tieshard::testing

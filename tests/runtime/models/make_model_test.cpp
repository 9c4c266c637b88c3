#include "tieshard/runtime/models/make_model.h"

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/families/family.h"
#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 12, "intermediate_size": 10,
  "num_hidden_layers": 2, "num_attention_heads": 3})";

HfConfig llama_config() {
  return HfConfig::parse(kLlama, "config.json");
}

TEST(MakeModel, RefusesAnArchitectureThatIsNotKnownAndListsTheKnownOnes) {
  const HfConfig config =
      HfConfig::parse(R"({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})", "c.json");
  expect_refusal([&] { make_model(config, TieRegistry()); }, Code::kUnknownArchitecture, {"mamba", "llama"});
}

TEST(MakeModel, RefusesAFamilyThatCanBeLoadedButNotRun) {
  const HfConfig config =
      HfConfig::parse(R"({"model_type": "albert", "architectures": ["AlbertForMaskedLM"]})", "c.json");
  expect_refusal([&] { make_model(config, TieRegistry()); },
                 Code::kUnknownArchitecture,
                 {"c.json", "the family is albert, of which only names and shapes are known", "docs/new_model.md"});
}

TEST(MakeModel, RefusesAGpt2ThatAttendsToAnEncoder) {
  const HfConfig config = HfConfig::parse(
      R"({"model_type": "gpt2", "vocab_size": 9, "n_positions": 4, "n_embd": 6, "n_layer": 1, "n_head": 2,
          "add_cross_attention": true})",
      "c.json");
  expect_refusal([&] { make_model(config, TieRegistry()); }, Code::kConfigValue, {"c.json", "add_cross_attention"});
}

TEST(MakeModel, GivesShapesWithoutBytesAndEveryParameterTrainable) {
  const auto model = make_model(llama_config(), TieRegistry());
  for (const NamedTensor& named : named_parameters(*model)) {
    EXPECT_TRUE(named.tensor.is_meta()) << named.fqn;
    EXPECT_TRUE(named.tensor.requires_grad()) << named.fqn;
    EXPECT_TRUE(named.tensor.is_leaf()) << named.fqn;
    EXPECT_EQ(named.tensor.scalar_type(), at::kFloat) << named.fqn;
  }
}

TEST(MakeModel, ComputesBuffersOnARealDeviceInFloat32WhateverTheParametersAre) {
  const auto model = make_model(llama_config(), TieRegistry(), {.device = at::kMeta, .dtype = at::kBFloat16});
  ASSERT_EQ(model->named_buffers().size(), 1U);
  for (const auto& buffer : model->named_buffers()) {
    EXPECT_FALSE(buffer.value().is_meta()) << buffer.key();
    EXPECT_EQ(buffer.value().scalar_type(), at::kFloat) << buffer.key();
  }
  EXPECT_EQ(named_parameters(*model).front().tensor.scalar_type(), at::kBFloat16);
}

TEST(MakeModel, GivesBytesOnTheDeviceThatIsAskedFor) {
  const auto model = make_model(llama_config(), TieRegistry(), {.device = at::kCPU});
  for (const NamedTensor& named : named_parameters(*model)) {
    EXPECT_TRUE(named.tensor.device().is_cpu()) << named.fqn;
  }
}

TEST(MakeModel, RefusesATieThatTheModelDoesNotHave) {
  const HfConfig config = llama_config();
  const ParameterTable table = require_family(config).table(config);
  const TieRegistry ties =
      TieRegistry::from_map({{"model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"}}, table);
  expect_refusal([&] { make_model(config, ties); },
                 Code::kTieNotShared,
                 {"model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"});
}

TEST(MakeModel, RunsTheModelAndEachLayerThroughTheUnitRunner) {
  struct Recorder : UnitRunner {
    at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) override {
      begun.push_back(&unit);
      at::Tensor output = forward(input);
      ended.push_back(&unit);
      return output;
    }
    std::vector<torch::nn::Module*> begun;
    std::vector<torch::nn::Module*> ended;
  };
  const auto model = make_model(llama_config(), TieRegistry(), {.device = at::kCPU});
  for (const NamedTensor& named : named_parameters(*model)) {
    at::NoGradGuard no_grad;
    named.tensor.uniform_(-0.5, 0.5);
  }
  const at::Tensor ids = at::arange(6, at::kLong).view({2, 3});
  const at::Tensor plain = model->forward(ids);
  const auto recorder = std::make_shared<Recorder>();
  model->set_unit_runner(recorder);
  EXPECT_TRUE(at::equal(model->forward(ids), plain));
  std::vector<torch::nn::Module*> order;
  for (const UnitModule& unit : model->units()) {
    order.push_back(unit.module);
  }
  EXPECT_EQ(recorder->begun, order); // the root, then the layers
  EXPECT_EQ(recorder->ended, (std::vector<torch::nn::Module*>{order[1], order[2], order[0]}));
  model->set_unit_runner(nullptr);
  EXPECT_TRUE(at::equal(model->forward(ids), plain));
  EXPECT_EQ(recorder->begun.size(), 3U); // not asked again
}

} // namespace
} // namespace tieshard::testing

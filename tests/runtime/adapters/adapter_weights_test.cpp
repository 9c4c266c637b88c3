#include "tieshard/runtime/adapters/adapter_weights.h"

#include <cmath>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/adapters/lora.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/state/full_tensor.h"

#include "tests/support/adapted_llama.h"
#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

/// A sharded Llama with an adapter.
struct Adapted {
  PlannedLlama base;
  std::shared_ptr<FsdpState> state;
};

Adapted adapt(const fs::path& directory, const DeviceMesh& mesh, const LoraPlan& lora) {
  Adapted adapted{.base = load_llama(directory, mesh), .state = nullptr};
  adapted.base.plan = adapted.base.plan.extended(add_lora(*adapted.base.model, lora));
  adapted.state = fully_shard(*adapted.base.model, adapted.base.plan, mesh);
  return adapted;
}

/// Every A and B gets values that no two places share.
void fill(const FsdpState& state) {
  const at::NoGradGuard no_grad;
  double start = 0;
  for (const FsdpParam* parameter : state.managed()) {
    if (parameter->trainable()) {
      const Shape& shape = parameter->spec().shape;
      const at::Tensor whole = at::arange(numel(shape), at::kFloat).view(shape) + start;
      const ChunkRange range = state.plan().range(parameter->spec(), state.mesh().rank());
      at::Tensor(parameter->parameter()).copy_(whole.narrow(parameter->spec().dim, range.offset, range.size));
      start += 1000;
    }
  }
}

std::map<std::string, at::Tensor> wholes(const FsdpState& state) {
  std::map<std::string, at::Tensor> values;
  for (const NamedTensor& named : full_state_dict(state)) {
    values.emplace(named.fqn, named.tensor);
  }
  return values;
}

std::vector<LoraConfig> configs() {
  LoraConfig saves = lora_on({"q_proj", "down_proj"});
  saves.modules_to_save = {"model.norm", "k_proj"};
  LoraConfig tied_saves = lora_on({"q_proj"}, TiedTarget::kBoth);
  tied_saves.modules_to_save = {"lm_head"};
  return {lora_on({"q_proj", "v_proj"}),
          saves,
          lora_on({"q_proj", "lm_head"}, TiedTarget::kBoth),
          lora_on({"embed_tokens", "lm_head"}, TiedTarget::kNamed),
          tied_saves};
}

/// The first rank says what is wrong, the others that it did.
void expect_refusal_on_all(const DeviceMesh& mesh,
                           const std::function<void()>& action,
                           Code code,
                           const std::string& part) {
  const bool first = mesh.rank() == 0;
  expect_refusal(action, first ? code : Code::kPeerFailed, {first ? part : std::string(id(code))});
}

TEST(AdapterWeights, WhatIsSavedOnTwoRanksLoadsOnThreeAndOnOne) {
  const fs::path directory = write_tiny_llama("model", {});
  const fs::path out = fresh_directory("out");
  const std::vector<LoraConfig> all = configs();
  for (std::size_t index = 0; index < all.size(); ++index) {
    const LoraPlan lora = lora_plan_for(directory, all[index]);
    const fs::path adapter = out / std::to_string(index);
    on_ranks(2, [&](const DeviceMesh& mesh) {
      const Adapted adapted = adapt(directory, mesh, lora);
      fill(*adapted.state);
      EXPECT_GT(save_adapter(*adapted.state, lora, adapter).tensors, 0);
    });
    for (const int ranks : {1, 3}) {
      on_ranks(ranks, [&](const DeviceMesh& mesh) {
        const Adapted filled = adapt(directory, mesh, lora);
        fill(*filled.state);
        const Adapted loaded = adapt(directory, mesh, lora);
        load_adapter(*loaded.base.model, AdapterFile::open(adapter), lora, loaded.base.plan, mesh);
        const auto expected = wholes(*filled.state);
        for (const auto& [fqn, value] : wholes(*loaded.state)) {
          EXPECT_TRUE(at::equal(value, expected.at(fqn))) << index << " " << fqn << " on " << mesh.where();
        }
      });
    }
  }
}

TEST(AdapterWeights, TheFileHasPeftsNamesAndWholeTensors) {
  const fs::path directory = write_tiny_llama("model", {});
  const fs::path adapter = fresh_directory("out") / "adapter";
  const LoraPlan lora = lora_plan_for(directory, lora_on({"q_proj", "lm_head"}, TiedTarget::kBoth));
  on_ranks(2, [&](const DeviceMesh& mesh) { save_adapter(*adapt(directory, mesh, lora).state, lora, adapter); });
  const AdapterFile file = AdapterFile::open(adapter);
  const std::map<std::string, Shape> expected{
      {"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", {3, 12}},
      {"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", {12, 3}},
      {"base_model.model.model.embed_tokens.lora_embedding_A", {3, 37}},
      {"base_model.model.model.embed_tokens.lora_embedding_B", {12, 3}},
      {"base_model.model.lm_head.lora_A.weight", {3, 12}},
      {"base_model.model.lm_head.lora_B.weight", {37, 3}}};
  for (const auto& [name, shape] : expected) {
    ASSERT_NE(file.file().find(name), nullptr) << name;
    EXPECT_EQ(file.file().find(name)->shape, shape) << name;
    EXPECT_EQ(file.file().find(name)->dtype, DType::kF32) << name;
  }
  EXPECT_EQ(file.config().rank, 3);
  EXPECT_EQ(file.config().tied, TiedTarget::kBoth);
}

TEST(AdapterWeights, NothingIsWrittenOverAndARefusalReachesAllRanks) {
  const fs::path directory = write_tiny_llama("model", {});
  const fs::path there = fresh_directory("there");
  const LoraPlan lora = lora_plan_for(directory, lora_on({"q_proj"}));
  const LoraPlan other = lora_plan_for(directory, lora_on({"v_proj"}));
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const Adapted adapted = adapt(directory, mesh, lora);
    EXPECT_THROW(save_adapter(*adapted.state, lora, there), Error);
    expect_refusal_on_all(
        mesh, [&] { save_adapter(*adapted.state, other, there / "new"); }, Code::kNotSharded, "v_proj.lora_A.weight");
  });
  EXPECT_TRUE(fs::is_empty(there));
}

TEST(AdapterWeights, AnAdapterOfAnotherModelIsRefusedOnAllRanks) {
  const fs::path directory = write_tiny_llama("model", {});
  const fs::path wider = write_tiny_llama("wider", {.hidden = 24, .intermediate = 40, .heads = 6});
  const fs::path adapter = fresh_directory("out") / "adapter";
  const LoraPlan lora = lora_plan_for(directory, lora_on({"q_proj"}));
  on_ranks(1, [&](const DeviceMesh& mesh) { save_adapter(*adapt(directory, mesh, lora).state, lora, adapter); });
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const LoraPlan here = lora_plan_for(wider, lora_on({"q_proj"}));
    const Adapted adapted = adapt(wider, mesh, here);
    const auto load = [&] {
      load_adapter(*adapted.base.model, AdapterFile::open(adapter), here, adapted.base.plan, mesh);
    };
    expect_refusal_on_all(mesh, load, Code::kShapeMismatch, "expected [3, 24], got [3, 12]");
  });
}

TEST(AdapterWeights, AnAdapterWithNaNIsRefusedWhenItIsLoaded) {
  const fs::path directory = write_tiny_llama("model", {});
  const fs::path adapter = fresh_directory("out") / "adapter";
  const LoraPlan lora = lora_plan_for(directory, lora_on({"q_proj"}));
  on_ranks(1, [&](const DeviceMesh& mesh) {
    const Adapted adapted = adapt(directory, mesh, lora);
    const at::NoGradGuard no_grad;
    for (const FsdpParam* parameter : adapted.state->managed()) {
      if (parameter->fqn() == lora.targets.front().a()) {
        at::Tensor(parameter->parameter()).fill_(std::nan(""));
      }
    }
    save_adapter(*adapted.state, lora, adapter);
  });
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const Adapted adapted = adapt(directory, mesh, lora);
    const auto load = [&] {
      load_adapter(*adapted.base.model, AdapterFile::open(adapter), lora, adapted.base.plan, mesh);
    };
    expect_refusal_on_all(mesh, load, Code::kNotFinite, lora.targets.front().a());
  });
}

} // namespace
} // namespace tieshard::testing

// accelerate #3821: "A parameter in the optimizer couldn't be switched to its sharded version".

#include <cmath>

#include <torch/optim/sgd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/optim/clip_grad_norm.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tied_module.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

constexpr std::int64_t kVocab = 11;
constexpr std::int64_t kHidden = 6;

/// The same weights on every rank.
std::shared_ptr<TiedModule> make_tied_module() {
  torch::manual_seed(7);
  auto module = std::make_shared<TiedModule>(kVocab, kHidden);
  validate_shared_object(*module);
  return module;
}

std::shared_ptr<FsdpState> shard(TiedModule& module, const DeviceMesh& mesh, std::vector<UnitModule> units = {}) {
  const ParameterTable table = parameter_table(module);
  const ShardPlan plan = ShardPlan::build(table, TieRegistry::of(table), mesh.size());
  if (units.empty()) {
    units = {{"", &module}};
  }
  return fully_shard(module, units, plan, mesh);
}

/// Mean loss of the module's prediction of the ids themselves; the same data on every rank.
at::Tensor loss_of(TiedModule& module, FsdpState* state) {
  const at::Tensor ids = at::arange(10, at::kLong).remainder(kVocab).view({2, 5});
  const auto forward = [&](const at::Tensor& x) { return module.forward(x); };
  const at::Tensor logits = state != nullptr ? state->run(module, ids, forward) : forward(ids);
  return at::cross_entropy_loss(logits.view({-1, kVocab}), ids.view({-1}));
}

std::vector<at::Tensor> tensors(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> list;
  for (const NamedTensor& item : named) {
    list.push_back(item.tensor);
  }
  return list;
}

/// Whole parameters after three steps without any sharding, each parameter in the optimizer once.
std::vector<at::Tensor> reference_after_three_steps() {
  const auto module = make_tied_module();
  torch::optim::AdamW optimizer(tensors(unique_parameters(*module)), adamw_options());
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(*module, nullptr).backward();
    optimizer.step();
  }
  return tensors(unique_parameters(*module));
}

class Issue3821 : public ::testing::TestWithParam<int> {};

TEST_P(Issue3821, AnOptimizerBuiltBeforeFullyShardGoesOnWorking) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const std::vector<at::Tensor> expected = reference_after_three_steps();
    const auto module = make_tied_module();
    auto early = std::make_unique<torch::optim::AdamW>(tensors(unique_parameters(*module)), adamw_options());
    const auto state = shard(*module, mesh);
    auto optimizer = OptimizerGuard(state).adopt(std::move(early));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(*module, state.get()).backward();
      optimizer.step();
    }
    const std::vector<NamedTensor> whole = full_state_dict(*state);
    ASSERT_EQ(whole.size(), expected.size());
    for (std::size_t index = 0; index < whole.size(); ++index) {
      EXPECT_LE(largest_difference(whole[index].tensor, expected[index]), 1e-6) << whole[index].fqn;
    }
    validate_shared_object(*module, state->plan().ties());
  });
}

TEST_P(Issue3821, AnOptimizerBuiltOnMetaBeforeLoadingGoesOnWorking) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    ParallelModel reference = parallelize(directory, mesh, exact_options());
    const Batch batch = make_batch(3, 7, 37);
    const TrainResult expected = train_steps(reference, mesh, batch, 2);

    const Checkpoint checkpoint = Checkpoint::open(directory);
    const ParallelModel& like = reference;
    const auto model = make_model(checkpoint.config(), like.ties);
    auto early = std::make_unique<torch::optim::AdamW>(tensors(unique_parameters(*model)), adamw_options());
    load_shards(*model, checkpoint, like.plan, mesh);
    const auto state = fully_shard(*model, like.plan, mesh, {.gradient_divide_factor = 1.0});
    auto optimizer = OptimizerGuard(*model).adopt(std::move(early));
    const Batch mine = part_of(batch, mesh);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      EXPECT_EQ(backward_global_mean(*model, mesh, mine.ids, mine.labels),
                expected.losses[static_cast<std::size_t>(step)]);
      optimizer.step();
    }
  });
}

TEST_P(Issue3821, AStrayParameterIsRefusedByName) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    const OptimizerGuard guard(state);
    const at::Tensor stray = at::ones({3, 3}).requires_grad_(true);
    EXPECT_NO_THROW(guard.assert_all_managed(tensors(unique_parameters(*module))));
    std::vector<at::Tensor> with_stray = tensors(unique_parameters(*module));
    with_stray.push_back(stray);
    expect_refusal(
        [&] { guard.assert_all_managed(with_stray); }, Code::kOptimizerParameter, {"[3, 3]", "foreign", "slot 3"});
    expect_refusal([&] { guard.adopt(std::make_unique<torch::optim::AdamW>(with_stray, adamw_options())); },
                   Code::kOptimizerParameter,
                   {"[3, 3]", "foreign", "register it in the module before fully_shard"});
  });
}

TEST_P(Issue3821, AStrayThroughAddParamGroupIsRefusedAlsoBehindTheGuardsBack) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options());
    const at::Tensor stray = at::ones({3, 3}).requires_grad_(true);
    expect_refusal([&] { optimizer.add_param_group(torch::optim::OptimizerParamGroup({stray})); },
                   Code::kOptimizerParameter,
                   {"[3, 3]", "foreign"});
    EXPECT_EQ(optimizer.raw().param_groups().size(), 1U);
    loss_of(*module, state.get()).backward();
    EXPECT_NO_THROW(optimizer.step());
    optimizer.raw().add_param_group(torch::optim::OptimizerParamGroup({stray})); // not through the guard
    expect_refusal([&] { optimizer.step(); }, Code::kOptimizerParameter, {"[3, 3]", "foreign", "group 1"});
  });
}

TEST_P(Issue3821, APartialWrapThatLeavesAParameterOutIsRefusedByName) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh, {{"body", module->body.get()}});
    expect_refusal([&] { OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options()); },
                   Code::kOptimizerParameter,
                   {"embed_tokens.weight", "not managed", "partial wrap", "before fully_shard"});
    module->embed_tokens->weight.set_requires_grad(false); // the remedy that the message names
    EXPECT_NO_THROW(OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options()));
  });
}

TEST_P(Issue3821, AnAdapterPairAndAHeadAddedAfterAreRefusedAllInOneMessage) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    module->add_adapter(2);
    module->add_value_head();
    expect_refusal([&] { OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options()); },
                   Code::kOptimizerParameter,
                   {"body.lora_A", "body.lora_B", "value_head.weight", "value_head.bias", "registered after"});
    expect_refusal([&] { OptimizerGuard(state).assert_all_managed(tensors(unique_parameters(*module))); },
                   Code::kOptimizerParameter,
                   {"body.lora_A", "value_head.weight"});
  });
}

TEST_P(Issue3821, AdaptersAndAHeadAddedBeforeAreManagedAndTrained) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    module->add_adapter(2);
    module->add_value_head();
    const auto state = shard(*module, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options());
    const std::vector<SlotReport> report = OptimizerGuard(state).report(optimizer.raw());
    EXPECT_EQ(report.size(), 7U);
    for (const SlotReport& slot : report) {
      EXPECT_EQ(slot.kind, SlotKind::kManaged) << slot.name;
    }
    const std::vector<NamedTensor> before = full_state_dict(*state);
    const at::Tensor ids = at::arange(10, at::kLong).remainder(kVocab).view({2, 5});
    const at::Tensor values = state->run(*module, ids, [&](const at::Tensor& x) {
      const at::Tensor hidden = module->embed_tokens->forward(x);
      const auto adapter = module->body->named_parameters();
      const at::Tensor adapted = at::linear(at::linear(hidden, adapter["lora_A"]), adapter["lora_B"]);
      return module->value_head->forward(at::tanh(module->body->forward(hidden) + adapted));
    });
    values.square().mean().backward();
    optimizer.step();
    const std::vector<NamedTensor> after = full_state_dict(*state);
    for (std::size_t index = 0; index < after.size(); ++index) {
      // with B = 0 the gradient of A is 0: only weight decay moves it, and that it does
      EXPECT_FALSE(at::equal(after[index].tensor, before[index].tensor)) << after[index].fqn;
    }
  });
}

TEST_P(Issue3821, AFrozenParameterAndOneLeftOutAreToldApart) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    module->body->bias.set_requires_grad(false);
    const std::vector<at::Tensor> chosen{module->embed_tokens->weight, module->body->bias};
    expect_refusal([&] { OptimizerGuard(state).adopt(std::make_unique<torch::optim::SGD>(chosen, 0.1)); },
                   Code::kOptimizerParameter,
                   {"body.bias (group 0, slot 1): frozen", "body.weight (no group)"});
  });
}

TEST_P(Issue3821, TheStockOptimizerOverATiedModulesParametersIsRefusedAndTheNormCountsItOnce) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    ASSERT_EQ(module->parameters().size(), 4U); // LibTorch lists the tied tensor under both names
    ASSERT_EQ(unique_parameters(*module).size(), 3U);
    const auto state = shard(*module, mesh);
    const OptimizerGuard guard(state);
    expect_refusal([&] { guard.adopt(std::make_unique<torch::optim::AdamW>(module->parameters(), adamw_options())); },
                   Code::kOptimizerParameter,
                   {"embed_tokens.weight", "stepped twice", "unique_parameters"});
    loss_of(*module, state.get()).backward();
    double squares = 0;
    for (const FsdpParam* parameter : state->managed()) {
      const at::Tensor whole = full_tensor(mesh, state->plan(), *parameter, parameter->parameter().grad());
      squares += whole.to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(clip_grad_norm(*state, std::numeric_limits<double>::infinity()), std::sqrt(squares), 1e-6);
  });
}

TEST_P(Issue3821, AParameterOfAnotherModelIsForeignAndAnUnshardedModelHasNoGuard) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const ParallelModel one = parallelize(directory, mesh, exact_options());
    const ParallelModel two = parallelize(directory, mesh, exact_options());
    expect_refusal([&] { OptimizerGuard(*one.model).assert_all_managed(tensors(unique_parameters(*two.model))); },
                   Code::kOptimizerParameter,
                   {"foreign"});
    const auto bare = make_model(one.checkpoint.config(), one.ties);
    expect_refusal([&] { OptimizerGuard guard(*bare); }, Code::kNotSharded, {"fully_shard"});
  });
}

TEST_P(Issue3821, AnOptimizerOfTheHeadAloneNamesAllThatItWouldNotTrain) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    const std::vector<at::Tensor> head{module->lm_head->weight};
    expect_refusal([&] { OptimizerGuard(state).adopt(std::make_unique<torch::optim::SGD>(head, 0.1)); },
                   Code::kOptimizerParameter,
                   {"body.weight (no group)", "body.bias (no group)"});
    module->body->weight.set_requires_grad(false);
    module->body->bias.set_requires_grad(false);
    EXPECT_NO_THROW(OptimizerGuard(state).adopt(std::make_unique<torch::optim::SGD>(head, 0.1)));
  });
}

TEST_P(Issue3821, AnOptimizerMadeAfterAForwardStepsOnShards) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const std::vector<at::Tensor> expected = reference_after_three_steps();
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    loss_of(*module, state.get()); // leaves the root whole
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(*module, state.get()).backward();
      optimizer.step();
    }
    const std::vector<NamedTensor> whole = full_state_dict(*state);
    for (std::size_t index = 0; index < whole.size(); ++index) {
      EXPECT_LE(largest_difference(whole[index].tensor, expected[index]), 1e-6) << whole[index].fqn;
    }
  });
}

TEST_P(Issue3821, AParameterThatIsUnfrozenLaterIsNamedAtTheNextStep) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    module->body->bias.set_requires_grad(false);
    const auto state = shard(*module, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options());
    EXPECT_NO_THROW(optimizer.step());
    module->body->bias.set_requires_grad(true);
    expect_refusal(
        [&] { optimizer.step(); }, Code::kOptimizerParameter, {"body.bias (no group)", "would never be trained"});
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({module->body->bias}));
    const at::Tensor before = module->body->bias.detach().clone();
    loss_of(*module, state.get()).backward();
    optimizer.step();
    EXPECT_FALSE(at::equal(module->body->bias, before));
  });
}

TEST_P(Issue3821, AParameterThatIsReplacedByHandIsStaleAtTheNextStep) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options());
    EXPECT_NO_THROW(optimizer.step());
    module->replace_module("body", torch::nn::Linear(kHidden, kHidden));
    expect_refusal(
        [&] { optimizer.step(); }, Code::kOptimizerParameter, {"body.weight", "body.bias", "stale", "another tensor"});
  });
}

TEST_P(Issue3821, AnAdapterAddedWhileTrainingIsNamedAtTheNextStep) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto module = make_tied_module();
    const auto state = shard(*module, mesh);
    auto optimizer = OptimizerGuard(state).build<torch::optim::AdamW>(adamw_options());
    EXPECT_NO_THROW(optimizer.step());
    module->add_adapter(2);
    expect_refusal([&] { optimizer.step(); },
                   Code::kOptimizerParameter,
                   {"body.lora_A (no group)", "body.lora_B (no group)", "not managed"});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Issue3821, ::testing::Values(1, 2, 3), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing

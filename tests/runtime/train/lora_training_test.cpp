#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/adapters/adapter_weights.h"
#include "tieshard/runtime/adapters/lora.h"
#include "tieshard/runtime/models/make_model.h"

#include "tests/support/adapted_llama.h"
#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

ParallelizeOptions adapter_options(const LoraConfig& config) {
  ParallelizeOptions options = exact_options();
  options.adapter = AdapterOptions{.config = config};
  return options;
}

/// An adapter whose B is not 0, trained on one rank: what others start from.
void make_adapter(const fs::path& model, const LoraConfig& config, const fs::path& adapter) {
  on_ranks(1, [&](const DeviceMesh& mesh) {
    ParallelModel parallel = parallelize(model, mesh, adapter_options(config));
    train_steps(parallel, mesh, make_batch(4, 9, 37), 3);
    save_adapter(*parallel.state, *parallel.lora, adapter);
  });
}

/// Losses, gradients and parameters after three steps, on `ranks` ranks, written as one adapter and compared there.
void expect_the_same_on_ranks(const LoraConfig& config, const std::vector<ParallelizeOptions>& variants) {
  const fs::path model = write_tiny_llama("model", {});
  const fs::path adapter = fresh_directory("out") / "adapter";
  make_adapter(model, config, adapter);
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](const DeviceMesh& mesh) {
      const Batch batch = make_batch(4, 9, 37);
      ParallelizeOptions whole = adapter_options(config);
      whole.adapter->directory = adapter;
      whole.adapter->tied = config.tied; // PEFT's file says nothing of an adapter for one use
      ParallelModel reference = parallelize(model, DeviceMesh(), whole);
      const TrainResult expected = train_steps(reference, DeviceMesh(), batch, 3);
      EXPECT_LT(expected.losses.back(), expected.losses.front());
      for (ParallelizeOptions options : variants) {
        options.adapter = whole.adapter;
        ParallelModel parallel = parallelize(model, mesh, options);
        const TrainResult found = train_steps(parallel, mesh, batch, 3);
        for (std::size_t step = 0; step < 3; ++step) {
          EXPECT_NEAR(found.losses[step], expected.losses[step], 2e-6) << "step " << step;
        }
        ASSERT_EQ(found.gradients.size(), expected.gradients.size());
        for (const auto& [fqn, gradient] : expected.gradients) {
          EXPECT_LT(largest_difference(found.gradients.at(fqn), gradient), 2e-6) << fqn;
        }
      }
    });
  }
}

std::vector<ParallelizeOptions> variants() {
  ParallelizeOptions first = exact_options();
  first.shard_dim = ShardDimPolicy::kFirst;
  ParallelizeOptions kept = exact_options();
  kept.fsdp.reshard_after_forward = false;
  ParallelizeOptions checkpointed = exact_options();
  checkpointed.fsdp.activation_checkpointing = true;
  return {exact_options(), first, kept, checkpointed};
}

TEST(LoraTraining, ShardedIsUnshardedForEveryPolicy) {
  expect_the_same_on_ranks(lora_on({"q_proj", "v_proj", "down_proj"}), variants());
}

TEST(LoraTraining, SoItIsForOneAdapterOnBothUsesOfATiedWeight) {
  expect_the_same_on_ranks(lora_on({"q_proj", "lm_head"}, TiedTarget::kBoth), {exact_options()});
}

TEST(LoraTraining, SoItIsForTheHeadAloneAndForModulesToSave) {
  LoraConfig config = lora_on({"lm_head", "embed_tokens"}, TiedTarget::kNamed);
  config.modules_to_save = {"model.norm", "k_proj"};
  expect_the_same_on_ranks(config, {exact_options()});
}

/// The loss that does not exist in pieces, of the logits of forward().
TEST(LoraTraining, TheLossOfAnAdaptedHeadIsThatOfItsLogits) {
  const fs::path model = write_tiny_llama("model", {});
  const fs::path adapter = fresh_directory("out") / "adapter";
  const LoraConfig config = lora_on({"q_proj", "lm_head"}, TiedTarget::kBoth);
  make_adapter(model, config, adapter);
  ParallelizeOptions options = adapter_options(config);
  options.adapter->directory = adapter;
  on_ranks(1, [&](const DeviceMesh& mesh) {
    ParallelModel parallel = parallelize(model, mesh, options);
    const Batch batch = make_batch(3, 9, 37);
    const auto gradients = [&](const at::Tensor& loss) {
      loss.backward();
      std::map<std::string, at::Tensor> taken;
      for (const FsdpParam* parameter : parallel.state->managed()) {
        if (parameter->trainable()) {
          taken.emplace(parameter->fqn(), parameter->parameter().grad().clone());
          parameter->parameter().mutable_grad().reset();
        }
      }
      return taken;
    };
    const at::Tensor whole = causal_lm_loss_sum(parallel.model->forward(batch.ids), batch.labels);
    const auto expected = gradients(whole);
    const at::Tensor pieces = parallel.model->loss(batch.ids, batch.labels);
    EXPECT_NEAR(pieces.item<float>(), whole.item<float>(), 1e-4);
    for (const auto& [fqn, gradient] : gradients(pieces)) {
      EXPECT_LT(largest_difference(gradient, expected.at(fqn)), 2e-5) << fqn;
      EXPECT_GT(gradient.abs().max().item<float>(), 1e-4) << fqn;
    }
  });
}

TEST(LoraTraining, TheBaseHasNoGradientNoStateAndDoesNotChange) {
  const fs::path model = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    ParallelModel parallel = parallelize(model, mesh, adapter_options(lora_on({"q_proj", "v_proj"})));
    std::map<std::string, at::Tensor> before;
    std::map<std::string, const void*> memory;
    for (const FsdpParam* parameter : parallel.state->managed()) {
      before.emplace(parameter->fqn(), parameter->shard().clone());
      memory.emplace(parameter->fqn(), parameter->shard().const_data_ptr());
    }
    auto optimizer = OptimizerGuard(parallel.state).build<torch::optim::AdamW>(adamw_options());
    const Batch mine = part_of(make_batch(4, 9, 37), mesh);
    for (int step = 0; step < 2; ++step) {
      backward_global_mean(*parallel.model, mesh, mine.ids, mine.labels);
      for (const FsdpParam* parameter : parallel.state->managed()) {
        EXPECT_EQ(parameter->parameter().grad().defined(), parameter->trainable()) << parameter->fqn();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(optimizer.raw().state().size(), 8U); // A and B of two modules in two layers
    for (const FsdpParam* parameter : parallel.state->managed()) {
      const bool same = at::equal(parameter->shard(), before.at(parameter->fqn()));
      EXPECT_EQ(same, !parameter->trainable()) << parameter->fqn();
      EXPECT_EQ(parameter->parameter().const_data_ptr(), memory.at(parameter->fqn()))
          << parameter->fqn() << " was copied";
    }
  });
}

/// bfloat16 base and float32 adapter lie in one unit: neither backend may round the one to the other's dtype.
TEST(LoraTraining, AdaptersKeepFloat32BesideABfloat16BaseOverBothBackends) {
  const fs::path model = write_tiny_llama("model", {});
  const fs::path adapter = fresh_directory("out") / "adapter";
  const LoraConfig config = lora_on({"q_proj", "down_proj"});
  make_adapter(model, config, adapter);
  for (const BackendChoice backend : {BackendChoice::kAuto, BackendChoice::kGloo}) {
    on_ranks(
        2,
        [&](const DeviceMesh& mesh) {
          ParallelizeOptions options = adapter_options(config);
          options.adapter->directory = adapter;
          options.param_dtype = at::kBFloat16;
          ParallelModel parallel = parallelize(model, mesh, options);
          ParallelModel reference = parallelize(model, DeviceMesh(), options);
          parallel.state->unshard();
          std::map<std::string, at::Tensor> whole;
          for (const NamedTensor& named : unique_parameters(*parallel.model)) {
            whole.emplace(named.fqn, named.tensor.detach().clone());
          }
          parallel.state->reshard();
          for (const NamedTensor& named : unique_parameters(*reference.model)) {
            const at::Tensor& found = whole.at(named.fqn);
            const bool of_adapter = named.fqn.find("lora_") != std::string::npos;
            EXPECT_EQ(found.scalar_type(), of_adapter ? at::kFloat : at::kBFloat16) << named.fqn;
            EXPECT_TRUE(at::equal(found, named.tensor)) << named.fqn;
          }
        },
        backend);
  }
}

TEST(LoraTraining, SavedOnTwoRanksItGoesOnOnThreeWithTheSameLosses) {
  const fs::path model = write_tiny_llama("model", {});
  const fs::path out = fresh_directory("out");
  const LoraConfig config = lora_on({"q_proj", "v_proj"});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    ParallelModel parallel = parallelize(model, mesh, adapter_options(config));
    train_steps(parallel, mesh, make_batch(4, 9, 37), 3);
    save_adapter(*parallel.state, *parallel.lora, out / "adapter");
  });
  on_ranks(3, [&](const DeviceMesh& mesh) {
    ParallelizeOptions options = adapter_options(config);
    options.adapter->directory = out / "adapter";
    ParallelModel resumed = parallelize(model, mesh, options);
    ParallelModel alone = parallelize(model, DeviceMesh(), options);
    const Batch batch = make_batch(4, 9, 37);
    const TrainResult found = train_steps(resumed, mesh, batch, 2);
    const TrainResult expected = train_steps(alone, DeviceMesh(), batch, 2);
    EXPECT_NEAR(found.losses[0], expected.losses[0], 2e-6);
    EXPECT_NEAR(found.losses[1], expected.losses[1], 2e-6);
    ParallelModel fresh = parallelize(model, DeviceMesh(), adapter_options(config));
    EXPECT_GT(train_steps(fresh, DeviceMesh(), batch, 1).losses[0], found.losses[0] + 1e-4) << "nothing was resumed";
  });
}

TEST(LoraTraining, ATiedTargetStopsEveryRankBeforeAnythingIsLoaded) {
  const fs::path model = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const bool first = mesh.rank() == 0;
    expect_refusal([&] { parallelize(model, mesh, adapter_options(lora_on({"lm_head"}))); },
                   first ? Code::kTiedTarget : Code::kPeerFailed,
                   {first ? "lm_head" : "tied-target"});
  });
}

} // namespace
} // namespace tieshard::testing

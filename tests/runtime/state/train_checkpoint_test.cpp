#include <functional>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/fused_sgd.h"
#include "tieshard/runtime/optim/lion.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/state/checkpoint_writer.h"
#include "tieshard/runtime/state/generator_state.h"
#include "tieshard/runtime/state/load_checkpoint.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal_on_ranks.h"
#include "tests/support/saved_tensors.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;
namespace optim = torch::optim;

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<at::Tensor>&)>;

std::unique_ptr<optim::Optimizer> fused_adamw(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<FusedAdamW>(parameters, optim::AdamWOptions(1e-2));
}

/// A sharded net and an optimizer over it. `block.second.bias` is frozen, `spare` never gets a gradient, `scale` has no
/// dimension; on four ranks shards are uneven, and some empty.
struct Trained {
  explicit Trained(const DeviceMesh& mesh, const MakeOptimizer& make = fused_adamw) {
    net.second->bias.set_requires_grad(false);
    state = shard_small_net(net, mesh);
    optimizer = make(OptimizerGuard(state).trainable());
  }

  void step(std::int64_t input = 0) {
    optimizer->zero_grad();
    net.forward(small_input(input), *state).square().sum().backward();
    state->reshard();
    optimizer->step();
  }

  void save(const fs::path& run, std::int64_t step, CheckpointWriterOptions options = {.optimizer = "adamw"}) {
    CheckpointWriter writer(state, *optimizer, run / "checkpoints", std::move(options));
    ASSERT_TRUE(writer.save({.step = step, .samples = 4 * step, .tokens = 40 * step}));
    writer.finish();
  }

  SmallNet net;
  std::shared_ptr<FsdpState> state;
  std::unique_ptr<optim::Optimizer> optimizer;
};

/// Changes everything that a checkpoint restores.
void spoil(Trained& trained) {
  const at::NoGradGuard no_grad;
  for (const FsdpParam* parameter : trained.state->managed()) {
    at::Tensor(parameter->shard()).fill_(-7);
  }
  trained.optimizer->state().clear();
}

class RoundTrip : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(RoundTrip, ToAnotherNumberOfRanksAndBackIsTheSameBits) {
  const auto [first, second] = GetParam();
  const fs::path out = fresh_directory("out");
  on_ranks(first, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    trained.step(1);
    trained.save(out / "a", 2);
  });
  const auto pass_on = [&](const DeviceMesh& mesh, const fs::path& from, const fs::path& to) {
    Trained trained(mesh);
    spoil(trained);
    const LoadedCheckpoint loaded = load_checkpoint(*trained.state, *trained.optimizer, "adamw", from, Verify::kHashes);
    EXPECT_EQ(loaded.trainer.step, 2);
    EXPECT_EQ(loaded.trainer.samples, 8);
    EXPECT_EQ(loaded.trainer.tokens, 80);
    EXPECT_TRUE(loaded.findings.empty());
    trained.save(to, 2);
  };
  on_ranks(second, [&](const DeviceMesh& mesh) { pass_on(mesh, out / "a", out / "b"); });
  on_ranks(first, [&](const DeviceMesh& mesh) { pass_on(mesh, out / "b", out / "c"); });
  const auto a = saved_tensors(out / "a" / "checkpoints" / "step-000000002");
  EXPECT_EQ(a.size(), 8U + 2 * 6); // 8 parameters, of which one is frozen and one had no gradient
  EXPECT_EQ(saved_tensors(out / "b" / "checkpoints" / "step-000000002"), a);
  EXPECT_EQ(saved_tensors(out / "c" / "checkpoints" / "step-000000002"), a);
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         RoundTrip,
                         ::testing::Combine(::testing::Range(1, 5), ::testing::Range(1, 5)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), "to", std::get<1>(info.param));
                         });

TEST(TrainCheckpoint, GoesOnWithTheSameBitsAndCounts) {
  const fs::path out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    trained.save(out, 1);
    trained.step(1);
    trained.step(2);
    Trained again(mesh);
    spoil(again);
    load_checkpoint(*again.state, *again.optimizer, "adamw", out);
    again.step(1);
    again.step(2);
    for (std::size_t index = 0; index < again.state->managed().size(); ++index) {
      const FsdpParam& parameter = *again.state->managed()[index];
      EXPECT_TRUE(at::equal(parameter.shard(), trained.state->managed()[index]->shard())) << parameter.fqn();
    }
  });
}

struct NamedOptimizer {
  std::string name;
  MakeOptimizer make;
};

class EveryOptimizer : public ::testing::TestWithParam<NamedOptimizer> {};

TEST_P(EveryOptimizer, IsRestoredWithItsMomentsAndCounters) {
  const fs::path out = fresh_directory("out");
  const NamedOptimizer& which = GetParam();
  on_ranks(3, [&](const DeviceMesh& mesh) {
    Trained trained(mesh, which.make);
    trained.step();
    trained.step(1);
    trained.save(out, 2, {.optimizer = which.name});
    trained.step(2);
    Trained again(mesh, which.make);
    spoil(again);
    load_checkpoint(*again.state, *again.optimizer, which.name, out);
    again.step(2);
    for (std::size_t index = 0; index < again.state->managed().size(); ++index) {
      const FsdpParam& parameter = *again.state->managed()[index];
      EXPECT_TRUE(at::equal(parameter.shard(), trained.state->managed()[index]->shard())) << parameter.fqn();
    }
  });
}

template <typename Optimizer, typename Options>
MakeOptimizer maker(const Options& options) {
  return
      [options](const std::vector<at::Tensor>& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    EveryOptimizer,
    ::testing::Values(NamedOptimizer{"adamw", maker<FusedAdamW>(optim::AdamWOptions(1e-2).amsgrad(true))},
                      NamedOptimizer{"sgd", maker<FusedSgd>(optim::SGDOptions(1e-2).momentum(0.9))},
                      NamedOptimizer{"lion", maker<Lion>(LionOptions(1e-3))},
                      NamedOptimizer{"torch_adamw", maker<optim::AdamW>(optim::AdamWOptions(1e-2))},
                      NamedOptimizer{"torch_adam", maker<optim::Adam>(optim::AdamOptions(1e-2))},
                      NamedOptimizer{"torch_sgd", maker<optim::SGD>(optim::SGDOptions(1e-2).momentum(0.9))},
                      NamedOptimizer{"torch_rmsprop",
                                     maker<optim::RMSprop>(optim::RMSpropOptions(1e-2).momentum(0.5).centered(true))},
                      NamedOptimizer{"torch_adagrad", maker<optim::Adagrad>(optim::AdagradOptions(1e-2))}),
    [](const auto& info) { return info.param.name; });

TEST(TrainCheckpoint, RecordsThatAParameterHasNoStateYet) {
  const fs::path out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    trained.save(out, 1);
  });
  const Manifest manifest = open_manifest(out / "checkpoints" / "step-000000001", Verify::kHashes);
  EXPECT_FALSE(manifest.find("spare")->optimizer.has_value());
  EXPECT_TRUE(manifest.find("spare")->trainable);
  EXPECT_FALSE(manifest.find("block.second.bias")->optimizer.has_value());
  EXPECT_FALSE(manifest.find("block.second.bias")->trainable);
  const OptimizerRecord& state = manifest.find("last.weight")->optimizer.value();
  EXPECT_THAT(state.moments, ::testing::ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_EQ(state.counters.at("step"), 1);
  EXPECT_EQ(manifest.find("scale")->dim, -1);
  EXPECT_EQ(manifest.find("last.weight")->dim, 1);
}

TEST(TrainCheckpoint, OfReplicasIsWrittenOnce) {
  const fs::path out = fresh_directory("out");
  const int port = loopback_port();
  on_ranks(4, [&](const DeviceMesh& mesh) {
    const RankEnvironment environment{.rank = mesh.rank(), .world_size = 4, .master_port = port};
    const DeviceMesh grid = DeviceMesh::connect(environment, std::chrono::seconds(60), {2, 2});
    SmallNet net;
    const auto state = fully_shard(
        net, net.units(), ShardPlan::build(parameter_table(net), TieRegistry::of(parameter_table(net)), 2), grid);
    FusedAdamW optimizer(OptimizerGuard(state).trainable(), optim::AdamWOptions(1e-2));
    net.forward(small_input(mesh.rank()), *state).square().sum().backward();
    optimizer.step();
    CheckpointWriter writer(
        state, optimizer, out / "checkpoints", {.background = mesh.size() == 4, .optimizer = "adamw"});
    writer.save({.step = 1});
    writer.finish();
    const at::Tensor before = net.last->weight.detach().clone();
    {
      const at::NoGradGuard no_grad;
      net.last->weight.detach().zero_();
    }
    load_checkpoint(*state, optimizer, "adamw", out);
    EXPECT_TRUE(at::equal(net.last->weight, before));
  });
  const Manifest manifest = open_manifest(out / "checkpoints" / "step-000000001", Verify::kHashes);
  ASSERT_EQ(manifest.mesh.size(), 2U);
  EXPECT_EQ(manifest.mesh.front().name, "dp_replicate");
  EXPECT_EQ(ShardedFiles::open(out / "checkpoints" / "step-000000001").files().size(), 4U); // two ranks, two kinds
}

TEST(TrainCheckpoint, RefusesAnotherModelOrOptimizerAndListsWhatDiffers) {
  const fs::path out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    trained.save(out, 1);
    const auto with_sgd = [&] { load_checkpoint(*trained.state, *trained.optimizer, "sgd", out); };
    expect_refusal_of_rank(
        mesh, 0, with_sgd, Code::kCheckpointMismatch, {"expected state of the optimizer sgd, got adamw"});
    torch::nn::Linear other(4, 6);
    const ShardPlan plan = plan_of(*other, mesh);
    const auto state = fully_shard(*other, {{"", other.get()}}, plan, mesh);
    FusedAdamW optimizer(OptimizerGuard(state).trainable(), optim::AdamWOptions(1e-2));
    expect_refusal_of_rank(
        mesh,
        0,
        [&] { load_checkpoint(*state, optimizer, "adamw", out); },
        Code::kCheckpointMismatch,
        {"weight: is not in the checkpoint", "scale: is in the checkpoint, and no parameter here", "and 2 more"});
  });
}

TEST(TrainCheckpoint, IsRefusedWhenAFileOfItIsGoneAndNothingIsChanged) {
  const fs::path out = fresh_directory("out");
  const fs::path saved = out / "checkpoints" / "step-000000001";
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    trained.save(out, 1);
  });
  fs::remove(saved / shard_file_name(1, 0, 2));
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    const at::Tensor before = trained.net.last->weight.detach().clone();
    const auto load = [&] { load_checkpoint(*trained.state, *trained.optimizer, "adamw", saved); };
    expect_refusal_of_rank(
        mesh, 0, load, Code::kCheckpointIncomplete, {"shard-00002-model-00001-of-00002.safetensors"});
    EXPECT_TRUE(at::equal(trained.net.last->weight, before));
  });
}

TEST(SaveInTheBackground, HoldsTheStateOfItsStepWhateverComesAfter) {
  const fs::path out = fresh_directory("out");
  on_ranks(3, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    trained.save(out / "now", 1);
    CheckpointWriter writer(
        trained.state, *trained.optimizer, out / "later" / "checkpoints", {.background = true, .optimizer = "adamw"});
    ASSERT_TRUE(writer.save({.step = 1}));
    for (int more = 0; more < 3; ++more) {
      trained.step(more);
      writer.require_no_failure();
      writer.prepare();
    }
    ASSERT_TRUE(writer.save({.step = 4}));
    spoil(trained);
    writer.finish();
    const std::vector<SaveReport> reports = writer.take_reports();
    ASSERT_EQ(reports.size(), mesh.rank() == 0 ? 2U : 0U);
    for (const SaveReport& report : reports) {
      EXPECT_GE(report.seconds, report.blocked);
      EXPECT_TRUE(fs::exists(report.directory));
      EXPECT_GT(report.bytes, 0U);
    }
  });
  const auto now = saved_tensors(out / "now" / "checkpoints" / "step-000000001");
  EXPECT_EQ(saved_tensors(out / "later" / "checkpoints" / "step-000000001"), now);
  EXPECT_NE(saved_tensors(out / "later" / "checkpoints" / "step-000000004"), now);
  EXPECT_EQ(CheckpointStore(out / "later" / "checkpoints").latest(), "step-000000004");
}

TEST(SaveInTheBackground, ThatOverlapsItsCopyHoldsTheStateFromBeforeTheNextStep) {
  const fs::path out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    const auto train = [&](const char* name, bool overlap) {
      CheckpointWriter writer(trained.state,
                              *trained.optimizer,
                              out / name,
                              {.background = true, .overlap_copy = overlap, .optimizer = "adamw"});
      writer.await_copy(); // nothing is being copied yet
      ASSERT_TRUE(writer.save({.step = 1}));
      if (overlap) {
        writer.await_copy();
        trained.step();
        writer.await_copy(); // nor now
      }
      writer.finish();
    };
    train("now", false);
    train("later", true);
  });
  EXPECT_EQ(saved_tensors(out / "later" / "step-000000001"), saved_tensors(out / "now" / "step-000000001"));
}

TEST(SaveInTheBackground, IsSkippedOnAllRanksWhileOneIsBeingWritten) {
  const fs::path out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    CheckpointWriter writer(trained.state,
                            *trained.optimizer,
                            out / "checkpoints",
                            {.background = true, .busy = BusySave::kSkip, .optimizer = "adamw"});
    int made = 0;
    for (std::int64_t step = 1; step <= 40; ++step) {
      made += writer.save({.step = step}) ? 1 : 0;
    }
    writer.finish();
    EXPECT_LT(made, 40); // forty of them at once, each with a dozen waits for the disk
    EXPECT_GE(made, 1);
    const std::size_t published = writer.take_reports().size();
    EXPECT_EQ(published, mesh.rank() == 0 ? static_cast<std::size_t>(made) : 0U);
  });
}

/// Writes of this process beyond `bytes` of a file fail from now on.
void limit_file_size(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(SaveInTheBackground, ThatFailsOnOneRankFailsOnAllAndLeavesTheOneBefore) {
  const fs::path out = fresh_directory("out");
  for (const int failing : {0, 1}) {
    const fs::path run = out / std::to_string(failing);
    on_ranks(2, [&](const DeviceMesh& mesh) {
      Trained trained(mesh);
      trained.step();
      CheckpointWriter writer(
          trained.state, *trained.optimizer, run / "checkpoints", {.background = true, .optimizer = "adamw"});
      ASSERT_TRUE(writer.save({.step = 1}));
      writer.finish();
      if (mesh.rank() == failing) {
        limit_file_size(300);
      }
      ASSERT_TRUE(writer.save({.step = 2}));
      try {
        writer.finish();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_TRUE(error.diagnostic().code == Code::kSaveFailed || error.diagnostic().code == Code::kPeerFailed)
            << error.what();
      }
    });
    const CheckpointStore store(run / "checkpoints");
    EXPECT_THAT(store.steps(), ::testing::ElementsAre(1));
    EXPECT_EQ(store.latest(), "step-000000001");
    EXPECT_FALSE(fs::exists(store.staging_of(2)));
    EXPECT_NO_THROW(open_manifest(store.path_of(1), Verify::kHashes));
  }
}

TEST(TrainCheckpoint, ThatFailsOnOneRankLeavesTheOneBefore) {
  const fs::path out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    trained.step();
    CheckpointWriter writer(trained.state, *trained.optimizer, out / "checkpoints", {.optimizer = "adamw"});
    ASSERT_TRUE(writer.save({.step = 1}));
    if (mesh.rank() == 1) {
      limit_file_size(300);
    }
    const auto save = [&] { writer.save({.step = 2}); };
    expect_refusal_of_rank(mesh, 1, save, Code::kIoFailed, {"shard-00002-model-00001-of-00002.safetensors"});
  });
  const CheckpointStore store(out / "checkpoints");
  EXPECT_THAT(store.steps(), ::testing::ElementsAre(1));
  EXPECT_FALSE(fs::exists(store.staging_of(2)));
}

TEST(TrainCheckpoint, KeepsTheNewestOnes) {
  const fs::path out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    CheckpointWriter writer(trained.state, *trained.optimizer, out / "checkpoints", {.keep = 2, .optimizer = "adamw"});
    for (std::int64_t step = 1; step <= 4; ++step) {
      writer.save({.step = step});
    }
  });
  EXPECT_THAT(CheckpointStore(out / "checkpoints").steps(), ::testing::ElementsAre(4, 3));
}

TEST(TrainCheckpoint, IsRefusedWhereAnotherJobWrites) {
  const fs::path out = fresh_directory("out");
  const DirectoryLock other = DirectoryLock::take(out / "checkpoints");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Trained trained(mesh);
    CheckpointWriter writer(trained.state, *trained.optimizer, out / "checkpoints", {});
    expect_refusal_of_rank(mesh, 0, [&] { writer.save({.step = 1}); }, Code::kDirectoryInUse, {"checkpoints"});
  });
}

TEST(GeneratorState, IsRestored) {
  at::manual_seed(3);
  at::rand({5});
  const std::string state = generator_state(at::kCPU);
  const at::Tensor expected = at::rand({7});
  at::rand({3});
  set_generator_state(at::kCPU, state);
  EXPECT_TRUE(at::equal(at::rand({7}), expected));
  expect_refusal([] { set_generator_state(at::kCPU, "0g"); }, Code::kManifestMalformed, {"hexadecimal", "0g"});
  expect_refusal([] { set_generator_state(at::kCPU, "00"); }, Code::kManifestMalformed, {"trainer.json"});
}

} // namespace
} // namespace tieshard::testing

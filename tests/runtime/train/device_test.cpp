// Everything between the files and the export, on a device whose memory the host may not touch.

#include <filesystem>
#include <memory>
#include <vector>

#include <torch/nn/modules/linear.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/optim/clip_grad_norm.h"
#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/fused_sgd.h"
#include "tieshard/runtime/optim/lion.h"
#include "tieshard/runtime/optim/optimizer_state.h"
#include "tieshard/runtime/state/checkpoint_writer.h"
#include "tieshard/runtime/state/hf_export.h"
#include "tieshard/runtime/state/load_checkpoint.h"
#include "tieshard/runtime/tensors/storage_bytes.h"

#include "tests/support/diagnostics.h"
#include "tests/support/guarded_device.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

constexpr double kClip = 0.5; // below the norms of the steps here

/// Losses and gradient norms of three steps, the whole parameters after them, and those of a model that went on from a
/// checkpoint of that moment.
struct Run {
  std::vector<double> numbers;
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> restored;
};

std::vector<NamedTensor> restore(const std::filesystem::path& model,
                                 const DeviceMesh& mesh,
                                 const ParallelizeOptions& options,
                                 const std::filesystem::path& checkpoints) {
  const ParallelModel parallel = parallelize(model, mesh, options);
  auto optimizer = OptimizerGuard(parallel.state).build<FusedAdamW>(adamw_options());
  load_checkpoint(*parallel.state, optimizer.raw(), "adamw", checkpoints);
  for (const FsdpParam* parameter : parallel.state->managed()) {
    const auto& kept = *optimizer.raw().state().at(parameter->parameter().unsafeGetTensorImpl());
    EXPECT_EQ(moments(kept)->front().device(), parameter->shard().device());
  }
  return full_state_dict(*parallel.state);
}

Run train_on(const std::filesystem::path& model,
             const DeviceMesh& mesh,
             const ParallelizeOptions& options,
             const std::filesystem::path& out) {
  ParallelModel parallel = parallelize(model, mesh, options);
  auto optimizer = OptimizerGuard(parallel.state).build<FusedAdamW>(adamw_options());
  const Batch mine = part_of(make_batch(4, 6, 37), mesh);
  Run run;
  for (int step = 0; step < 3; ++step) {
    run.numbers.push_back(backward_global_mean(*parallel.model, mesh, mine.ids, mine.labels));
    run.numbers.push_back(clip_grad_norm(*parallel.state, kClip));
    optimizer.step();
    optimizer.zero_grad();
  }
  run.parameters = full_state_dict(*parallel.state);
  const std::filesystem::path checkpoints = out / "checkpoints";
  CheckpointWriter writer(parallel.state, optimizer.raw(), checkpoints, {.background = true, .optimizer = "adamw"});
  writer.save({.step = 3});
  writer.finish();
  run.restored = restore(model, mesh, options, checkpoints);
  export_hf(*parallel.state, parallel.checkpoint, out / "export");
  return run;
}

/// The parameters as the export of a run holds them, read onto the host.
std::vector<NamedTensor> exported(const std::filesystem::path& directory, const DeviceMesh& host) {
  return full_state_dict(*parallelize(directory, host, exact_options()).state);
}

/// How far two runs may be apart.
struct Bounds {
  double numbers; ///< relative, of losses and norms
  double largest; ///< of each element of the parameters
  double mean;    ///< over the elements of each parameter
};

/// Trains on the host and on the guarded device, and compares: the latter computes with LibTorch's kernels of the host,
/// where the host has some of its own (linear layers, loss, AdamW), and packs reductions. So sums differ in their
/// order.
void expect_the_same(int ranks,
                     const ParallelizeOptions& options,
                     at::Device shards_on,
                     Bounds bounds = {.numbers = 1e-5, .largest = 1e-5, .mean = 1e-6}) {
  const std::filesystem::path model = write_tiny_llama("model", {});
  const std::filesystem::path out = fresh_directory("out");
  on_ranks(ranks, [&](const DeviceMesh& host) {
    const DeviceMesh mesh = guarded(host);
    const Run expected = train_on(model, host, options, out / "host");
    const Run run = train_on(model, mesh, options, out / "device");
    ASSERT_EQ(run.numbers.size(), expected.numbers.size());
    for (std::size_t index = 0; index < run.numbers.size(); ++index) {
      EXPECT_NEAR(run.numbers[index], expected.numbers[index], bounds.numbers * expected.numbers[index]) << index;
    }
    ASSERT_EQ(run.parameters.size(), expected.parameters.size());
    for (std::size_t index = 0; index < run.parameters.size(); ++index) {
      EXPECT_EQ(run.parameters[index].tensor.device(), shards_on);
      const at::Tensor apart = (run.parameters[index].tensor.cpu() - expected.parameters[index].tensor).abs();
      EXPECT_LE(apart.max().item<double>(), bounds.largest) << run.parameters[index].fqn;
      EXPECT_LE(apart.mean().item<double>(), bounds.mean) << run.parameters[index].fqn;
      EXPECT_EQ(run.restored[index].tensor.device(), shards_on);
      EXPECT_TRUE(at::equal(run.restored[index].tensor.cpu(), run.parameters[index].tensor.cpu()));
    }
    const std::vector<NamedTensor> files = exported(out / "device" / "export", host);
    ASSERT_EQ(files.size(), run.parameters.size());
    for (std::size_t index = 0; index < files.size(); ++index) {
      EXPECT_TRUE(at::equal(files[index].tensor, run.parameters[index].tensor.cpu())) << files[index].fqn;
    }
  });
}

class OnADevice : public ::testing::TestWithParam<int> {};

TEST_P(OnADevice, TrainingIsThatOfTheHost) {
  expect_the_same(GetParam(), exact_options(), kGuardedDevice);
}

TEST_P(OnADevice, ShardsMayLieInHostMemory) {
  ParallelizeOptions options = exact_options();
  options.fsdp.offload_policy.to_host = true;
  expect_the_same(GetParam(), options, at::kCPU);
}

TEST_P(OnADevice, UnitsMayBeCheckpointedAndComputeInBfloat16) {
  ParallelizeOptions options = exact_options();
  options.fsdp.activation_checkpointing = true;
  options.fsdp.backward_prefetch = 1;
  options.fsdp.mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  // The kernels round to bfloat16 at different places. A loss is a unit of it off, and where a gradient is so small
  // that rounding turns it, three steps of 1e-3 go the other way; few are.
  expect_the_same(GetParam(), options, kGuardedDevice, {.numbers = 1.0 / 256, .largest = 6e-3, .mean = 1e-4});
}

INSTANTIATE_TEST_SUITE_P(Ranks, OnADevice, ::testing::Values(1, 2), ::testing::PrintToStringParamName());

TEST(ADevice, IsWhereParametersBuffersAndCollectivesAre) {
  const std::filesystem::path model = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& host) {
    const DeviceMesh mesh = guarded(host);
    EXPECT_EQ(mesh.device(), kGuardedDevice);
    EXPECT_EQ(host.device(), at::Device(at::kCPU));
    auto& backend = dynamic_cast<GuardedBackend&>(*mesh.backend(kGuardedDevice));
    const ParallelModel parallel = parallelize(model, mesh, exact_options());
    for (const at::Tensor& tensor : parallel.model->parameters()) {
      EXPECT_EQ(tensor.device(), kGuardedDevice);
    }
    for (const at::Tensor& tensor : parallel.model->buffers()) {
      EXPECT_EQ(tensor.device(), kGuardedDevice);
    }
    const Batch batch = make_batch(1, 6, 37);
    backward_global_mean(*parallel.model, mesh, batch.ids, batch.labels);
    EXPECT_EQ(backend.collectives, 3 + 2 + 3); // units gathered, layers gathered again, units reduced
  });
}

TEST(ADevice, ThatIsNotTheMeshsIsRefusedForAModule) {
  const std::filesystem::path model = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& host) {
    ParallelModel parallel = parallelize(model, host, exact_options());
    torch::nn::Linear module(4, 4);
    expect_refusal(
        [&] { fully_shard(*module, guarded(host)); }, Code::kWrongState, {"weight", kGuardedDevice.str(), "got cpu"});
  });
}

TEST(ADevice, ThatTheRanksHaveNoConnectionForIsRefusedForATensor) {
  on_ranks(2, [](const DeviceMesh& host) {
    const at::Tensor there = at::ones({2}, kGuardedDevice);
    expect_refusal([&] { all_reduce(host, there); }, Code::kWrongState, {"rank", "expected cpu", kGuardedDevice.str()});
    expect_refusal(
        [&] { all_gather_into_tensor(host, at::empty({4}, kGuardedDevice), there); }, Code::kWrongState, {"device"});
  });
}

TEST(StorageBytes, AreTakenFromAndGivenBackToTheDevicesOwnAllocator) {
  const std::size_t before = GuardedMemory::instance().blocks();
  const at::Tensor tensor = at::ones({3}, kGuardedDevice);
  const at::Tensor view = tensor.narrow(0, 1, 2);
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  EXPECT_EQ(GuardedMemory::instance().blocks(), before + 1);
  free_storage(tensor);
  EXPECT_EQ(GuardedMemory::instance().blocks(), before);
  EXPECT_EQ(tensor.storage().nbytes(), 0);
  allocate_storage(tensor);
  EXPECT_EQ(GuardedMemory::instance().blocks(), before + 1);
  EXPECT_EQ(tensor.storage().unsafeGetStorageImpl(), storage);
  tensor.fill_(7);
  EXPECT_TRUE(at::equal(view.cpu(), at::full({2}, 7.0F)));
}

TEST(TheGuardedDevice, EndsWhoeverTouchesItsMemory) {
  const at::Tensor tensor = at::ones({3}, kGuardedDevice);
  EXPECT_EQ(tensor.cpu()[1].item<float>(), 1.0F);
  EXPECT_EXIT(static_cast<volatile float*>(tensor.mutable_data_ptr())[0] = 1, ::testing::KilledBySignal(SIGSEGV), "");
}

/// The three optimizers over one parameter in bfloat16.
std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_of(const at::Tensor& parameter, Bf16Update update) {
  const std::vector<torch::optim::OptimizerParamGroup> groups{std::vector{parameter}};
  std::vector<std::unique_ptr<torch::optim::Optimizer>> made;
  made.push_back(std::make_unique<FusedAdamW>(groups, torch::optim::AdamWOptions(1e-3), Bf16Options{.update = update}));
  made.push_back(
      std::make_unique<FusedSgd>(groups, torch::optim::SGDOptions(1e-3).momentum(0.9), Bf16Options{.update = update}));
  made.push_back(std::make_unique<Lion>(groups, LionOptions(1e-3), Bf16Options{.update = update}));
  return made;
}

TEST(ADevice, StepsBfloat16WithMasterWeightsAndRefusesToRoundAtRandom) {
  on_ranks(1, [](const DeviceMesh& host) {
    const DeviceMesh mesh = guarded(host);
    for (std::size_t kind = 0; kind < 3; ++kind) {
      const at::Tensor here = at::ones({70}, at::kBFloat16).requires_grad_(true);
      const at::Tensor there = here.detach().to(mesh.device()).requires_grad_(true);
      const auto on_host = std::move(optimizers_of(here, Bf16Update::kMasterWeights)[kind]);
      const auto on_device = std::move(optimizers_of(there, Bf16Update::kMasterWeights)[kind]);
      for (int step = 0; step < 20; ++step) {
        here.mutable_grad() = at::cos(at::arange(70, at::kFloat) / 70).to(at::kBFloat16);
        there.mutable_grad() = here.grad().to(mesh.device());
        on_host->step();
        on_device->step();
      }
      EXPECT_LE(largest_difference(there.detach().cpu(), here.detach()), 1.0 / 128); // neighbours, where sums differ
      EXPECT_GT(largest_difference(here.detach(), at::ones_like(here)), 0.01);
      const auto refused = std::move(optimizers_of(there, Bf16Update::kStochasticRounding)[kind]);
      expect_refusal([&] { refused->step(); }, Code::kDeviceUnavailable, {"expected parameters in host memory"});
    }
  });
}

} // namespace
} // namespace tieshard::testing

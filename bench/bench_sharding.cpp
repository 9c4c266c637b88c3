// bench/bench_sharding.cpp [RANKS...]
//
// What sharding adds to a training step, by the model's layers (2, 8, 30; otherwise SmolLM2-135M) and by ranks (1, 2, 3
// and 4 unless told otherwise). Each rank has the model twice, once sharded and once not: the same kernels, optimizer,
// tokens and processes, and as many of them at once. The two take turns, between barriers; medians of 10 steps after 3.
// Forward with backward and AdamW are timed apart: a sharded rank steps only its part of the parameters. Float32, one
// thread, 256 tokens a rank. Exit status 1 when one rank and 30 layers miss the goal.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/local_launcher.h"
#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/tensors/heap_allocator.h"
#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/support/random_decoder.h"

namespace tieshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGoal = 0.02; // of the unsharded step, on one rank with all layers
constexpr std::array<std::int64_t, 3> kLayers = {2, 8, 30};
constexpr std::int64_t kTokens = 256;
constexpr std::int64_t kVocab = 49152;
constexpr int kWarmUp = 3;
constexpr int kRuns = 10;

std::shared_ptr<DecoderForCausalLm> make_model(std::int64_t layers) {
  return testing::random_decoder(
      testing::llama_sizes(
          kVocab, /*hidden=*/576, /*inner=*/1536, layers, /*heads=*/9, /*kv_heads=*/3, /*head_dim=*/64),
      0.02);
}

std::vector<at::Tensor> tensors_of(const DecoderForCausalLm& model) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : unique_parameters(model)) {
    tensors.push_back(parameter.tensor);
  }
  return tensors;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

/// Seconds of each step of one side, from barrier to barrier.
struct Side {
  std::vector<double> passes{};    ///< forward and backward
  std::vector<double> optimizer{}; ///< with zero_grad

  double step() const {
    std::vector<double> steps;
    for (std::size_t index = 0; index < passes.size(); ++index) {
      steps.push_back(passes[index] + optimizer[index]);
    }
    return median(steps);
  }
};

template <typename Optimizer>
void step(DecoderForCausalLm& model, Optimizer& optimizer, const at::Tensor& ids, const DeviceMesh& mesh, Side& side) {
  barrier(mesh);
  const auto start = Clock::now();
  model.loss(ids, ids, 1.0 / static_cast<double>(kTokens - 1)).backward();
  barrier(mesh);
  const auto middle = Clock::now();
  optimizer.step();
  optimizer.zero_grad();
  barrier(mesh);
  side.passes.push_back(std::chrono::duration<double>(middle - start).count());
  side.optimizer.push_back(std::chrono::duration<double>(Clock::now() - middle).count());
}

struct Measured {
  Side plain;
  Side sharded;
};

Measured measure(const DeviceMesh& mesh, std::int64_t layers) {
  const auto options = torch::optim::AdamWOptions(1e-4);
  const at::Tensor ids = at::randint(0, kVocab, {1, kTokens}, at::kLong);
  const auto plain = make_model(layers);
  FusedAdamW plain_optimizer(tensors_of(*plain), options);
  const auto sharded = make_model(layers);
  const auto state = fully_shard(*sharded, mesh);
  auto sharded_optimizer = OptimizerGuard(state).build<FusedAdamW>(options);
  Measured measured;
  for (int pair = 0; pair < kWarmUp + kRuns; ++pair) {
    Measured warm_up;
    Measured& into = pair < kWarmUp ? warm_up : measured;
    for (const bool second : {false, true}) { // the first of a pair changes
      if (second == (pair % 2 == 0)) {
        step(*sharded, sharded_optimizer, ids, mesh, into.sharded);
      } else {
        step(*plain, plain_optimizer, ids, mesh, into.plain);
      }
    }
  }
  return measured;
}

void print_row(const DeviceMesh& mesh, std::int64_t layers, const Measured& measured) {
  const double passes = median(measured.plain.passes);
  const double cost = median(measured.sharded.passes) - passes;
  std::printf("| %d | %d | %.3f | %.3f | %.3f | %.3f | %+.0f ms, %+.1f %% | %+.1f %% |\n",
              static_cast<int>(layers),
              static_cast<int>(mesh.size()),
              passes,
              median(measured.plain.optimizer),
              median(measured.sharded.passes),
              median(measured.sharded.optimizer),
              1000 * cost,
              100 * cost / passes,
              100 * (measured.sharded.step() / measured.plain.step() - 1));
  std::fflush(stdout);
}

/// What one rank does. @returns false when it is the only one and misses the goal
bool run() {
  use_heap_allocator();
  at::set_num_threads(1);
  const DeviceMesh mesh = DeviceMesh::from_environment();
  bool met = true;
  for (const std::int64_t layers : kLayers) {
    const Measured measured = measure(mesh, layers);
    if (mesh.rank() == 0) {
      print_row(mesh, layers, measured);
    }
    if (mesh.size() == 1 && layers == kLayers.back()) {
      met = measured.sharded.step() <= (1 + kGoal) * measured.plain.step();
      std::printf("goal: one rank adds at most %.0f %% to the step: %s\n", 100 * kGoal, met ? "met" : "missed");
    }
  }
  return met;
}

} // namespace
} // namespace tieshard

int main(int count, char** arguments) {
  std::vector<std::int64_t> ranks;
  for (int index = 1; index < count; ++index) {
    ranks.push_back(std::atoll(arguments[index]));
  }
  if (ranks.empty()) {
    ranks = {1, 2, 3, 4};
  }
  try {
    std::printf(
        "| layers | ranks | unsharded passes s | AdamW s | sharded passes s | AdamW s | cost of sharding | step |\n"
        "|---|---|---|---|---|---|---|---|\n");
    std::fflush(stdout);
    int worst = 0;
    for (const std::int64_t number : ranks) {
      const auto status = tieshard::launch_local({.ranks = number});
      if (!status) { // one of the ranks
        return tieshard::run() ? 0 : 1;
      }
      worst = std::max(worst, *status);
    }
    return worst;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}

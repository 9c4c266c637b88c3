// bench/bench_optimizer.cpp
//
// Seconds of one step of each optimizer over the 134.5 M parameters of SmolLM2-135M, in its 272 tensors, on one thread;
// the rate at which this process copies memory; and what the guard's check takes of a training step. One JSON object on
// standard output: bench/bench_optimizer.py runs it beside PyTorch and knows the goals.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/fused_sgd.h"
#include "tieshard/runtime/optim/guarded_optimizer.h"
#include "tieshard/runtime/optim/lion.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/tensors/heap_allocator.h"
#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/support/random_decoder.h"

namespace tieshard {
namespace {

using Clock = std::chrono::steady_clock;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

constexpr std::int64_t kTokens = 256;
constexpr std::int64_t kVocab = 49152;
constexpr int kWarmUp = 2;
constexpr int kRuns = 9;
constexpr int kChecks = 200;

double median_seconds(int warm_up, int runs, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int run = -warm_up; run < runs; ++run) {
    const auto start = Clock::now();
    work();
    if (run >= 0) {
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

std::shared_ptr<DecoderForCausalLm> make_model(at::ScalarType dtype) {
  return testing::random_decoder(
      testing::llama_sizes(kVocab, /*hidden=*/576, /*inner=*/1536, 30, /*heads=*/9, /*kv_heads=*/3, /*head_dim=*/64),
      0.02,
      dtype);
}

std::int64_t numel_of(const DecoderForCausalLm& model) {
  std::int64_t numel = 0;
  for (const NamedTensor& parameter : unique_parameters(model)) {
    numel += parameter.tensor.numel();
  }
  return numel;
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

double step_seconds(at::ScalarType dtype, const Make& make) {
  const auto model = make_model(dtype);
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& named : unique_parameters(*model)) {
    named.tensor.mutable_grad() = at::full_like(named.tensor.detach(), 1e-3);
    parameters.push_back(named.tensor);
  }
  const auto optimizer = make(Groups{parameters});
  return median_seconds(kWarmUp, kRuns, [&] { optimizer->step(); });
}

/// Bytes a second, read and written, of a copy as large as the parameters.
double copy_rate(std::int64_t numel) {
  const at::Tensor from = at::ones({numel}, at::kFloat);
  const at::Tensor to = at::zeros({numel}, at::kFloat);
  const double seconds =
      median_seconds(kWarmUp, kRuns, [&] { std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes()); });
  return 2.0 * static_cast<double>(from.nbytes()) / seconds;
}

struct GuardCost {
  double step = 0;
  double check = 0;
};

/// What GuardedOptimizer::step() does before the optimizer's step, in a whole training step on one rank.
GuardCost guard_cost() {
  const auto model = make_model(at::kFloat);
  const auto state = fully_shard(*model, DeviceMesh());
  auto optimizer = OptimizerGuard(state).build<FusedAdamW>(torch::optim::AdamWOptions(1e-5));
  const at::Tensor ids = at::randint(0, kVocab, {1, kTokens}, at::kLong);
  GuardCost cost;
  cost.step = median_seconds(1, 5, [&] {
    model->loss(ids, ids, 1.0 / static_cast<double>(kTokens - 1)).backward();
    optimizer.step();
    optimizer.zero_grad();
  });
  cost.check = median_seconds(kWarmUp, kChecks, [&] {
    optimizer.guard().reshard();
    optimizer.guard().require_admissible(optimizer.raw());
  });
  return cost;
}

Make adamw(Bf16Update update = Bf16Update::kNearest) {
  return [update](const Groups& groups) {
    return std::make_unique<FusedAdamW>(groups, torch::optim::AdamWOptions(1e-4), Bf16Options{.update = update});
  };
}

void run() {
  at::set_num_threads(1);
  use_heap_allocator();
  struct Row {
    const char* name;
    at::ScalarType dtype;
    Make make;
  };
  const std::vector<Row> rows{
      {"adamw float32", at::kFloat, adamw()},
      {"adamw bfloat16", at::kBFloat16, adamw()},
      {"adamw bfloat16, master weights", at::kBFloat16, adamw(Bf16Update::kMasterWeights)},
      {"adamw bfloat16, stochastic rounding", at::kBFloat16, adamw(Bf16Update::kStochasticRounding)},
      {"sgd momentum float32",
       at::kFloat,
       [](const Groups& groups) {
         return std::make_unique<FusedSgd>(groups, torch::optim::SGDOptions(1e-4).momentum(0.9), Bf16Options{});
       }},
      {"lion float32",
       at::kFloat,
       [](const Groups& groups) { return std::make_unique<Lion>(groups, LionOptions(1e-4)); }},
  };
  const std::int64_t numel = numel_of(*make_model(at::kFloat));
  std::printf("{\"parameters\": %lld, \"copy_bytes_per_s\": %.6g, \"step_s\": {",
              static_cast<long long>(numel),
              copy_rate(numel));
  for (const Row& row : rows) {
    std::printf("%s\"%s\": %.6g", &row == rows.data() ? "" : ", ", row.name, step_seconds(row.dtype, row.make));
  }
  const GuardCost cost = guard_cost();
  std::printf("}, \"guard_check_s\": %.6g, \"training_step_s\": %.6g}\n", cost.check, cost.step);
}

} // namespace
} // namespace tieshard

int main() {
  try {
    tieshard::run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}

// tests/support/small_net.h
//
// A user's own LibTorch module that can be sharded: units inside each other, a 0-dim parameter, one that is not used.

#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/models/unit_runner.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard::testing {

/// Linear layers 4 -> 6 -> 6 -> 3; `block` is one module with `block.first` and `block.second` in it. The same weights
/// whenever it is made.
class SmallNet : public torch::nn::Module {
 public:
  SmallNet() {
    torch::manual_seed(11);
    block = register_module("block", std::make_shared<torch::nn::Module>("Block"));
    first = block->register_module("first", torch::nn::Linear(4, 6));
    second = block->register_module("second", torch::nn::Linear(6, 6));
    last = register_module("last", torch::nn::Linear(6, 3));
    scale = register_parameter("scale", at::full({}, 1.5));
    spare = register_parameter("spare", at::ones({5}));
  }

  /// x [B, 4] -> [B, 3]. `use_spare` makes the output depend on `spare` too.
  at::Tensor forward(const at::Tensor& x, UnitRunner& runner, bool use_spare = false) {
    return runner.run(*this, x, [&](const at::Tensor& input) {
      const at::Tensor hidden = runner.run(*block, input * scale, [&](const at::Tensor& h) {
        const at::Tensor half = runner.run(*first, h, [&](const at::Tensor& y) { return first->forward(y).tanh(); });
        return second->forward(half).tanh();
      });
      const at::Tensor output = last->forward(hidden);
      return use_spare ? output + spare.sum() : output;
    });
  }

  /// The root, the block, and the layer inside the block.
  std::vector<UnitModule> units() {
    return {{"", this}, {"block", block.get()}, {"block.first", first.get()}};
  }

  std::shared_ptr<torch::nn::Module> block;
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  at::Tensor scale;
  at::Tensor spare;
};

/// Input [B, 4] of `rank`: each rank has its own.
inline at::Tensor small_input(std::int64_t rank, std::int64_t rows = 3) {
  return at::sin(at::arange(rows * 4, at::kFloat) + 10.0F * static_cast<float>(rank)).view({rows, 4});
}

inline ShardPlan plan_of(const torch::nn::Module& module,
                         const DeviceMesh& mesh,
                         const ShardPlanOptions& options = {}) {
  const ParameterTable table = parameter_table(module);
  return ShardPlan::build(table, TieRegistry::of(table), mesh.size(), options);
}

inline std::shared_ptr<FsdpState> shard_small_net(SmallNet& net,
                                                  const DeviceMesh& mesh,
                                                  const FullyShardOptions& options = {}) {
  return fully_shard(net, net.units(), plan_of(net, mesh), mesh, options);
}

} // namespace tieshard::testing

// examples/user_module.cpp
//
// fully_shard on a module that knows nothing of tieshard. LibTorch has no module hooks, so the training code says where
// a unit begins and ends: a run around each, the root's outermost. docs/fully_shard.md walks through it; a test runs it
// on one rank and on two and compares the losses.
//
// Flow: (under torchrun, Slurm or mpirun, or alone) -> [this] -> the loss of each step

#include <iostream>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/optim/optimizer_guard.h"

namespace {

constexpr std::int64_t kVocab = 32;
constexpr std::int64_t kHidden = 16;

// The user's model: plain LibTorch.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(kHidden, 4 * kHidden));
    down = register_module("down", torch::nn::Linear(4 * kHidden, kHidden));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + down->forward(at::gelu(up->forward(x)));
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct Net : torch::nn::Module {
  Net() {
    embed = register_module("embed", torch::nn::Embedding(kVocab, kHidden));
    const auto list = register_module("blocks", torch::nn::ModuleList());
    for (int index = 0; index < 3; ++index) {
      blocks.emplace_back();
      list->push_back(blocks.back());
    }
    head = register_parameter("head", embed->weight); // tied
  }
  torch::nn::Embedding embed{nullptr};
  std::vector<Block> blocks;
  at::Tensor head;
};

// The training code: the model's forward, with a run around the root and around each block.
at::Tensor loss_of(Net& net, const at::Tensor& ids, tieshard::UnitRunner& state) {
  return state.run(net, ids, [&](const at::Tensor& tokens) {
    at::Tensor x = net.embed->forward(tokens);
    for (Block& block : net.blocks) {
      x = state.run(*block, x, [&](const at::Tensor& input) { return block->forward(input); });
    }
    return at::cross_entropy_loss(at::linear(x, net.head).flatten(0, 1), tokens.roll(-1, 1).flatten());
  });
}

void train() {
  const auto mesh = tieshard::DeviceMesh::from_environment(); // torchrun, Slurm, mpirun or one rank
  torch::manual_seed(1);                                      // the same weights on every rank
  Net net;
  const auto state = tieshard::fully_shard(net, mesh, {.unit_policy = tieshard::units_of_class<BlockImpl>()});
  auto optimizer = tieshard::OptimizerGuard(state).build<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  const at::Tensor batch = (at::arange(48, at::kLong) * 7 % kVocab).view({4, 12});
  const std::int64_t rows = 4 / mesh.size();
  for (int step = 0; step < 5; ++step) {
    const at::Tensor loss = loss_of(net, batch.narrow(0, mesh.rank() * rows, rows), *state);
    loss.backward(); // each rank has the mean over its rows; fully_shard takes the mean over ranks
    optimizer.step();
    optimizer.zero_grad();
    at::Tensor mean = loss.detach() / static_cast<double>(mesh.size());
    tieshard::all_reduce(mesh, mean);
    if (mesh.rank() == 0) {
      std::cout << "step " << step << " loss " << mean.item<double>() << "\n";
    }
  }
}

} // namespace

int main() {
  try {
    train();
  } catch (const tieshard::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

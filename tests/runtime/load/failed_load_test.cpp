// A load that fails on one rank fails on all, leaves no uninitialised values, and can be tried again.

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

std::map<std::string, at::Tensor> parameters_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  return tensors;
}

/// Cuts the weights off in the middle, as a disk error or a writer behind our back would.
void cut(const fs::path& directory) {
  const fs::path file = directory / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) / 2);
}

/// A copy of `directory` for each rank, so that one of them can be damaged.
std::vector<fs::path> copies_of(const fs::path& directory, int ranks) {
  std::vector<fs::path> copies;
  for (int rank = 0; rank < ranks; ++rank) {
    copies.push_back(directory.parent_path() / concat(directory.filename().string(), ".rank", rank));
    fs::remove_all(copies.back());
    fs::copy(directory, copies.back());
  }
  return copies;
}

TEST(FailedLoad, LeavesEveryParameterOnMetaWithItsWholeShape) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(1, [&](const DeviceMesh& mesh) {
    PlannedLlama planned = plan_llama(directory, mesh);
    const auto before = parameters_of(*planned.model);
    cut(directory); // after it was opened and checked
    expect_refusal([&] { load_shards(*planned.model, planned.checkpoint, planned.plan, mesh); },
                   Code::kFileChanged,
                   {"model.safetensors"});
    for (const auto& [fqn, tensor] : parameters_of(*planned.model)) {
      EXPECT_TRUE(tensor.is_same(before.at(fqn))) << fqn;
      EXPECT_TRUE(tensor.is_meta()) << fqn;
      EXPECT_EQ(tensor.sizes().vec(), planned.plan.find(fqn)->shape) << fqn;
      EXPECT_TRUE(tensor.requires_grad()) << fqn;
    }
    expect_refusal([&] { require_materialized(*planned.model); }, Code::kStillOnMeta, {"model.norm.weight"});
  });
}

TEST(FailedLoad, OnOneRankReachesTheOthersByName) {
  const auto copies = copies_of(write_tiny_llama("model", {}), 3);
  on_ranks(3, [&](const DeviceMesh& mesh) {
    const fs::path& directory = copies[static_cast<std::size_t>(mesh.rank())];
    PlannedLlama planned = plan_llama(directory, mesh);
    if (mesh.rank() == 1) {
      cut(directory);
    }
    const auto load = [&] { load_shards(*planned.model, planned.checkpoint, planned.plan, mesh); };
    if (mesh.rank() == 1) {
      expect_refusal(load, Code::kFileChanged, {"model.safetensors"});
    } else {
      expect_refusal(load, Code::kPeerFailed, {mesh.where(), "stage load", "rank 1 says"});
    }
  });
}

TEST(FailedLoad, CanBeRepeatedWithAGoodCheckpointAndTheSameModel) {
  const auto good = write_tiny_llama("model", {});
  const auto copies = copies_of(good, 2);
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const fs::path& directory = copies[static_cast<std::size_t>(mesh.rank())];
    PlannedLlama planned = plan_llama(directory, mesh);
    if (mesh.rank() == 1) {
      cut(directory);
    }
    EXPECT_THROW(load_shards(*planned.model, planned.checkpoint, planned.plan, mesh), PeerError);
    const Checkpoint again = Checkpoint::open(good);
    load_shards(*planned.model, again, planned.plan, mesh);
    const PlannedLlama fresh = load_llama(good, mesh);
    const auto expected = parameters_of(*fresh.model);
    for (const auto& [fqn, tensor] : parameters_of(*planned.model)) {
      EXPECT_TRUE(at::equal(tensor, expected.at(fqn))) << fqn << " on " << mesh.where();
    }
  });
}

TEST(FailedLoad, AnAbsentTensorIsRefusedBeforeAnythingIsMaterialized) {
  const auto directory = write_tiny_llama("model", {.tied = false, .head = StoredHead::kAbsent});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    PlannedLlama planned = plan_llama(directory, mesh);
    expect_refusal([&] { load_shards(*planned.model, planned.checkpoint, planned.plan, mesh); },
                   mesh.rank() == 0 ? Code::kMissingParameter : Code::kPeerFailed, // who says the same only follows
                   {mesh.rank() == 0 ? "lm_head.weight" : "rank 0 says the same"});
    for (const NamedTensor& named : named_parameters(*planned.model)) {
      EXPECT_TRUE(named.tensor.is_meta()) << named.fqn;
    }
  });
}

} // namespace
} // namespace tieshard::testing

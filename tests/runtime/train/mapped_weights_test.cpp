// Weights that are private pages of their files train as copies do, and a file that is cut ends the run on all ranks.

#include <cstring>
#include <filesystem>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/state/hf_export.h"

#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

/// Matrices of 1 MiB, so that the half of one is mapped.
constexpr TinyLlama kMapped{.vocab = 64, .hidden = 256, .intermediate = 1024, .layers = 1, .heads = 4, .head_dim = 64};

ParallelizeOptions options_with(bool map) {
  ParallelizeOptions options = exact_options();
  options.shard_dim = ShardDimPolicy::kFirst;
  options.load.map = map;
  return options;
}

TEST(MappedWeights, TrainAndExportAsCopiesDoAndLeaveTheFileAlone) {
  const auto directory = write_tiny_llama("model", kMapped);
  const auto out = fresh_directory("out");
  const std::string before = read_text_file(directory / "model.safetensors");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    ParallelModel mapped = parallelize(directory, mesh, options_with(true));
    ParallelModel copied = parallelize(directory, mesh, options_with(false));
    EXPECT_GT(mapped.ledger.bytes_mapped, 1U << 20);
    EXPECT_EQ(copied.ledger.bytes_mapped, 0U);
    const Batch batch = make_batch(4, 8, kMapped.vocab);
    const TrainResult one = train_steps(mapped, mesh, batch, 3);
    const TrainResult other = train_steps(copied, mesh, batch, 3);
    EXPECT_EQ(one.losses, other.losses);
    for (const auto& [fqn, tensor] : other.parameters) {
      EXPECT_TRUE(at::equal(one.parameters.at(fqn), tensor)) << fqn;
    }
    export_hf(*mapped.state, mapped.checkpoint, out / "mapped");
    export_hf(*copied.state, copied.checkpoint, out / "copied");
  });
  EXPECT_EQ(read_text_file(out / "mapped" / "model.safetensors"), read_text_file(out / "copied" / "model.safetensors"));
  EXPECT_EQ(read_text_file(directory / "model.safetensors"), before);
}

fs::path write_tokens() {
  const fs::path path = fresh_directory("data") / "tokens.bin";
  std::vector<std::uint16_t> tokens(400);
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::uint16_t>(index * 5 % 37);
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 2));
  return path;
}

TEST(MappedWeights, OfAFileThatIsCutInTrainingEndTheRunOnAllRanks) {
  TrainConfig config;
  config.model = write_tiny_llama("model", kMapped);
  config.data = write_tokens();
  config.out = fresh_directory("out") / "run";
  config.steps = 5;
  config.sequence = 8;
  config.shard_dim = ShardDimPolicy::kFirst;
  on_ranks(2, [&](const DeviceMesh& mesh) {
    int steps = 0;
    const auto cut = [&](const StepMetrics&) {
      ++steps;
      fs::resize_file(config.model / "model.safetensors", 4096);
    };
    try {
      train(config, mesh, {.on_step = cut});
      ADD_FAILURE() << "trained on a file that was cut";
    } catch (const PeerError& error) {
      const Code code = error.diagnostic().code;
      EXPECT_TRUE(code == Code::kFileChanged || code == Code::kPeerFailed) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("a mapped weights file could not be read any more"));
    }
    EXPECT_LE(steps, 1);
  });
  EXPECT_FALSE(fs::exists(config.out / "export"));
}

TEST(MappedWeights, OfAFileThatIsCutAreNotExported) {
  const auto directory = write_tiny_llama("model", kMapped);
  const auto out = fresh_directory("out");
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const ParallelModel parallel = parallelize(directory, mesh, options_with(true));
    if (mesh.rank() == 0) {
      fs::resize_file(directory / "model.safetensors", 4096);
    }
    EXPECT_THROW(export_hf(*parallel.state, parallel.checkpoint, out / "export"), PeerError);
  });
  EXPECT_FALSE(fs::exists(out / "export"));
}

} // namespace
} // namespace tieshard::testing

// tieshard/cli/demo_checkpoint.h
//
// A small tied Llama checkpoint with random weights, as transformers 5 would save it.
//
// Flow: demo -> [this] -> core/families, checkpoint/safetensors_writer.h

#pragma once

#include <cstdint>
#include <filesystem>

namespace tieshard::cli {

/// Sizes of the demo's model. The vocabulary is the 256 bytes.
struct DemoModel {
  std::int64_t vocab = 256;
  std::int64_t hidden = 64;
  std::int64_t intermediate = 176;
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t key_value_heads = 2;
  std::int64_t head_dim = 16;
  std::int64_t context = 128;
  std::uint64_t seed = 20; ///< equal seeds give equal files
};

/// Writes config.json (v5 style, tie_word_embeddings true) and model.safetensors (BF16, no lm_head.weight) into the
/// existing `directory`. Matrices are drawn from a normal distribution of deviation 0.02, as transformers does; norms
/// are one.
/// @throws PeerError disk-full, io-failed
void write_demo_checkpoint(const std::filesystem::path& directory, const DemoModel& model = {});

} // namespace tieshard::cli

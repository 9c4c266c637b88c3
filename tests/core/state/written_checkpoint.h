// tests/core/state/written_checkpoint.h
//
// A complete checkpoint on disk, of one rank that wrote one small shard: what the choice of checkpoints looks at.

#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tieshard/core/base/file.h"
#include "tieshard/core/state/shard_file_writer.h"
#include "tieshard/core/state/trainer_state.h"

#include "tests/core/state/example_manifest.h"

namespace tieshard {

/// The manifest of a checkpoint as written, with other members; hashes and sizes of the files as they are.
inline void rewrite_manifest(const std::filesystem::path& directory, Manifest manifest) {
  for (FileRecord& file : manifest.files) {
    file = record_of(directory, file.name);
  }
  std::ofstream(directory / Manifest::kFileName, std::ios::trunc) << to_json(manifest);
}

/// @param mark  what the tensors' bytes are, so that two checkpoints of one step can be told apart
inline Manifest write_checkpoint(const std::filesystem::path& directory, std::int64_t step, char mark = 1) {
  std::filesystem::create_directories(directory);
  Manifest manifest = example_manifest();
  manifest.step = step;
  manifest.parameters[0].optimizer->counters["step"] = step;
  const std::string data(96, mark); // as many bytes as the largest tensor has
  std::vector<BlockInMemory> blocks;
  const auto add = [&](const std::string& name, const ParameterRecord& parameter) {
    blocks.push_back({.block = block_of(name, parameter.dtype, parameter.shape, -1, {}),
                      .data = std::as_bytes(std::span(data)).data()});
  };
  for (const ParameterRecord& parameter : manifest.parameters) {
    if (parameter.stored) {
      add(parameter.fqn, parameter);
    }
    for (const std::string& moment : parameter.optimizer ? parameter.optimizer->moments : std::vector<std::string>()) {
      add(parameter.fqn + "." + moment, parameter);
    }
  }
  const FileRecord shard = write_shard_file(directory, shard_file_name(0, 0, 1), blocks, manifest.id);
  const TrainerState trainer{.step = step, .generators = {"00", "01"}};
  write_text_file(directory / TrainerState::kFileName, to_json(trainer));
  manifest.files = {shard, record_of(directory, std::string(TrainerState::kFileName))};
  std::ofstream(directory / Manifest::kFileName) << to_json(manifest);
  return manifest;
}

} // namespace tieshard

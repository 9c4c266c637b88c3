// tests/core/state/written_checkpoint.h
//
// A complete checkpoint on disk, of two small files that are no tensors: what the choice of checkpoints looks at.

#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tieshard/core/base/content_hash.h"
#include "tieshard/core/state/manifest.h"

#include "tests/core/state/example_manifest.h"

namespace tieshard {

inline FileRecord write_recorded(const std::filesystem::path& directory,
                                 const std::string& name,
                                 const std::string& text) {
  std::ofstream(directory / name, std::ios::binary) << text;
  ContentHash hash;
  hash.update(std::as_bytes(std::span(text)));
  return {.name = name, .bytes = text.size(), .xxh128 = hash.hex()};
}

/// @param mark  put into a file, so that two checkpoints of one step can be told apart
inline Manifest write_checkpoint(const std::filesystem::path& directory,
                                 std::int64_t step,
                                 const std::string& mark = "first") {
  std::filesystem::create_directories(directory);
  Manifest manifest = example_manifest();
  manifest.step = step;
  manifest.files = {write_recorded(directory, "shard-00001-model-00001-of-00001.safetensors", "tensors " + mark),
                    write_recorded(directory, "trainer.json", "{}")};
  std::ofstream(directory / Manifest::kFileName) << to_json(manifest);
  return manifest;
}

} // namespace tieshard

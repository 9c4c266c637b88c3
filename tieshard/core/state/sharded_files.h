// tieshard/core/state/sharded_files.h
//
// The tensors that the safetensors files of a directory hold together, each put together from its blocks; nothing is
// believed that the files do not cover once and once only.
//
// Flow:   a directory of this project, of DCP's HuggingFaceStorageWriter or of save_pretrained -> [this] -> box_reader
// Source: docs/checkpoints.md; DCP's reader infers whole shapes from the blocks that are there, and so misses a lost
// one.

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/core/state/box.h"

namespace tieshard {

struct StoredBlock {
  std::size_t file = 0;     ///< index into ShardedFiles::files()
  std::uint64_t offset = 0; ///< first byte in that file
  Box box;
};

struct ShardedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<StoredBlock> blocks; ///< non-empty ones; together all of it, disjoint
};

class ShardedFiles {
 public:
  /// Opens every *.safetensors of the directory, headers only; not those in subdirectories.
  ///
  /// A tensor's shape is what its blocks say (this project's), else the least that holds them all (DCP's). Blocks that
  /// are equal in place and file alike (a replicated tensor written by several ranks) count as overlap.
  /// @throws InputError directory-not-found, no-weights (no such file), block-missing, block-overlap, saves-mixed,
  ///         shape-mismatch and tie-dtype-differs (blocks of one tensor that contradict each other), metadata that is
  ///         not as it has to be (bad-entry), and what SafetensorsFile::open throws
  static ShardedFiles open(const std::filesystem::path& directory, const SafetensorsLimits& limits = {});

  /// The tensor of this name, or null.
  const ShardedTensor* find(std::string_view name) const;

  /// Sorted by name.
  const std::vector<ShardedTensor>& tensors() const noexcept {
    return tensors_;
  }
  const std::vector<SafetensorsFile>& files() const noexcept {
    return files_;
  }
  const std::filesystem::path& directory() const noexcept {
    return directory_;
  }
  /// Of the save that wrote them; empty where no file says one.
  const std::string& id() const noexcept {
    return id_;
  }

 private:
  ShardedFiles() = default;

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<ShardedTensor> tensors_;
  std::string id_;
};

} // namespace tieshard

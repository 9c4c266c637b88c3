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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/stored_weights.h"
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
  int cut = -1; ///< the dimension that its blocks are cut on, empty ones among them; -1: none or several
  std::vector<StoredBlock> blocks; ///< non-empty ones; together all of it, disjoint
  bool stated = true;              ///< whether a file says the shape; else it is the least that holds the blocks
};

class ShardedFiles {
 public:
  /// Opens every *.safetensors of the directory, headers only; not those in subdirectories. Where no file says of its
  /// tensors where they lie (DCP_SHARDING_INFO), model.safetensors or the index decides which files count, as in
  /// Checkpoint::open; the others are in findings().
  ///
  /// A tensor's shape is what its blocks say (this project's), else the least that holds them all (DCP's). Blocks that
  /// are equal in place and file alike (a replicated tensor written by several ranks) count as overlap.
  /// @throws InputError directory-not-found, no-weights (no such file), shard-missing (by the names of the others),
  ///         block-missing, block-overlap, saves-mixed, shape-mismatch and tie-dtype-differs (blocks of one tensor that
  ///         contradict each other), metadata that is not as it has to be (bad-entry), size-overflow, and what
  ///         open_stored_weights and SafetensorsFile::open throw
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
  /// Warnings: files that lie there and are not used, and what open_stored_weights finds.
  const std::vector<Diagnostic>& findings() const noexcept {
    return findings_;
  }

 private:
  ShardedFiles() = default;
  /// @param names  of all weights files of the directory
  void take_plain(StoredWeights weights, std::vector<std::string> names);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<ShardedTensor> tensors_;
  std::string id_;
  std::vector<Diagnostic> findings_;
};

/// A warning, where there are tensors of which nothing says how large they are.
std::optional<Diagnostic> unstated_shapes(const ShardedFiles& files);

} // namespace tieshard

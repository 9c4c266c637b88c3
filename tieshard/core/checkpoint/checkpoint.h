// tieshard/core/checkpoint/checkpoint.h
//
// A Hugging Face checkpoint directory: config, and where each stored tensor lies. Headers only; no tensor data is read.
//
// Flow:   config.json + headers + index -> [this] -> ties, plan, io
// Source: transformers save_pretrained: model.safetensors, or shards with model.safetensors.index.json.

#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/checkpoint/stored_weights.h"

namespace tieshard {

/// An opened and validated directory. Movable, immutable, may be shared between threads.
class Checkpoint {
 public:
  /// Opens `directory`: config.json, then model.safetensors, or the shards of model.safetensors.index.json.
  ///
  /// A single file wins over an index beside it, as in transformers, unless the index names that file (warning
  /// stale-index, which says whether the other shards are there too).
  ///
  /// A path of a regular file is that file: model.safetensors beside a config.json is the directory; any other is taken
  /// by itself, without config and index, with the note config-missing.
  /// @throws InputError directory-not-found, config-missing, no-weights (names what is there instead, with the
  ///         command that converts pickled weights), peft-adapter (an adapter alone), index-malformed,
  ///         path-escape, shard-missing, tensor-not-in-shard, tensor-not-in-index, and everything that HfConfig::parse
  ///         and SafetensorsFile::open throw
  static Checkpoint open(const std::filesystem::path& directory, const SafetensorsLimits& limits = {});

  /// The same checkpoint with other names for some tensors: file's name -> model's name (families/name_mapping.h finds
  /// them). Keys of file metadata stay as they are.
  /// Pre: every key is the stored_name of a tensor, and no two tensors come to have one name.
  Checkpoint renamed(const std::map<std::string, std::string>& names) &&;

  /// The stored tensor of exactly this name, or null. No tie is followed: ask TieRegistry for that.
  const StoredTensor* find(std::string_view name) const;

  /// All stored tensors, sorted by name, each name once.
  const std::vector<StoredTensor>& tensors() const noexcept {
    return tensors_;
  }
  const std::vector<SafetensorsFile>& files() const noexcept {
    return files_;
  }
  const HfConfig& config() const noexcept {
    return config_;
  }
  const std::filesystem::path& directory() const noexcept {
    return directory_;
  }
  /// Warnings and notes: stale-index, tensor-in-two-shards, total-size, peft-adapter (beside a model).
  const std::vector<Diagnostic>& findings() const noexcept {
    return findings_;
  }
  /// Name of the file of `tensor`, relative to the directory.
  std::string file_name(const StoredTensor& tensor) const;

 private:
  Checkpoint() = default;
  static Checkpoint open_file(const std::filesystem::path& file, const SafetensorsLimits& limits);

  std::filesystem::path directory_;
  HfConfig config_;
  std::vector<SafetensorsFile> files_;
  std::vector<StoredTensor> tensors_;
  std::vector<Diagnostic> findings_;
};

} // namespace tieshard

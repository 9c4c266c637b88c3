// tieshard/core/adapters/adapter_file.h
//
// An adapter's directory as PEFT saves it: adapter_config.json and adapter_model.safetensors.
//
// Flow: a directory -> [this] -> merge, runtime/adapters

#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tieshard/core/adapters/adapter_tensors.h"
#include "tieshard/core/checkpoint/safetensors_file.h"

namespace tieshard {

/// A stored tensor with what it is in the model.
struct MatchedTensor {
  AdapterTensor tensor;
  const TensorEntry* entry = nullptr; ///< of the file
};

class AdapterFile {
 public:
  /// Headers only. @throws InputError directory-not-found, file-not-found (no adapter_config.json), no-weights (pickled
  ///         weights, with the command that converts them; or none), adapter-config, and what SafetensorsFile::open
  ///         throws
  static AdapterFile open(const std::filesystem::path& directory);

  const LoraConfig& config() const noexcept {
    return config_;
  }
  const SafetensorsFile& file() const noexcept {
    return file_;
  }
  const std::filesystem::path& directory() const noexcept {
    return directory_;
  }

  /// The stored tensors, each told what it is in a model with `plan`; those of the base come first, so that values of
  /// the adapter's own win.
  /// @throws InputError missing-parameter, shape-mismatch (both sizes named), unused-tensor, dtype-not-loadable: one
  ///         error that lists all its offenders; tie-conflict when copies for the uses of a tied weight differ
  std::vector<MatchedTensor> match(const LoraPlan& plan) const;

  /// A whole tensor as float32, row-major. @throws PeerError io-failed
  std::vector<float> read(const TensorEntry& entry) const;

  /// Bytes of the file at which `entry` begins.
  std::uint64_t offset_of(const TensorEntry& entry) const {
    return file_.header().data_start + entry.begin;
  }

 private:
  AdapterFile(std::filesystem::path directory, LoraConfig config, SafetensorsFile file)
      : directory_(std::move(directory)), config_(std::move(config)), file_(std::move(file)) {}

  void require_equal_copies(const std::vector<MatchedTensor>& matched, const LoraPlan& plan) const;

  std::filesystem::path directory_;
  LoraConfig config_;
  SafetensorsFile file_;
};

} // namespace tieshard

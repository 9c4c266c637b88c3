// tieshard/cli/runtime/data_flags.h
//
// The flags that say what a token file is and which of its tokens are targets.
//
// Flow: train_verb, eval_verb -> [this] -> core/data/token_samples

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tieshard/runtime/train/token_data.h"
#include "tieshard/runtime/train/train_config.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
} // namespace CLI

namespace tieshard::cli {

struct DataFlags {
  std::string format = "auto";
  std::string dtype = "auto";
  std::filesystem::path label_mask{};
  bool documents = false;
  std::optional<std::int64_t> document_separator{};
  std::int64_t target = 0;

  /// Format, dtype, mask and documents; the rest is the caller's.
  TokenDataOptions options() const;
};

/// --data-format, --data-dtype, --label-mask, --documents, --document-separator, --target-len.
void add_data_flags(CLI::App& verb, DataFlags& flags);

/// --eval-data, --eval-label-mask, --eval-every, --eval-samples: of train, into its configuration.
void add_evaluation_flags(CLI::App& verb, TrainConfig& config);

/// Sets what the flags say. @throws InputError bad-flag for evaluation flags without --eval-data
void apply(const DataFlags& flags, TrainConfig& config);

} // namespace tieshard::cli

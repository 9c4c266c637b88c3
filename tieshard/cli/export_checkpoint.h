// tieshard/cli/export_checkpoint.h
//
// `tieshard export CKPT OUT` and `tieshard merge IN OUT`: a plain Hugging Face directory from sharded files.
//
// Flow: app -> [this] -> core/state/export_checkpoint.h

#pragma once

#include <filesystem>
#include <string>

#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct ExportVerbOptions {
  bool merge = false;
  std::filesystem::path in{};
  std::filesystem::path out{};
  std::filesystem::path config_from{};
  std::string dtype{};          ///< as torch spells it; empty: the config's (export), as stored (merge)
  std::string max_shard_size{}; ///< a size; empty: the default of ExportCheckpointOptions
  std::string memory{};         ///< a size; empty: the default of ExportCheckpointOptions
  int threads = 0;              ///< 0: the processors, at most 8
  bool verify = false;
  bool json = false;
};

/// @throws whatever export_checkpoint throws; InputError bad-flag
int run_export(const ExportVerbOptions& options, const Console& console);

/// Add the verbs to `app`; their callbacks fill `chosen`.
void add_export(CLI::App& app, Verb& chosen);
void add_merge(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

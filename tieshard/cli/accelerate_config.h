// tieshard/cli/accelerate_config.h
//
// `tieshard doctor --accelerate-config`: accelerate's YAML, checked against the ties and the layers of a checkpoint.
//
// Flow:   doctor_log -> [this] -> accelerate_fields, yaml-cpp, core/ties/resolved_model.h
// Source: accelerate's FullyShardedDataParallelPlugin and the fields that `accelerate config` writes (1.15).

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard::cli {

/// The fields that matter here, as the file writes them; those of fsdp_config without their prefix fsdp_.
struct AccelerateConfig {
  std::string where{};
  std::map<std::string, std::string> top{};
  std::map<std::string, std::string> fsdp{};
  std::set<std::string> lists{}; ///< fields of fsdp that are lists; their values have commas

  /// In lower case; empty where the file says nothing.
  std::string field(const std::string& name) const;
  bool is(const std::string& name) const; ///< "true" or "yes"
};

/// @throws InputError file-not-found, file-unreadable, file-too-large, yaml-malformed (no YAML, no map, a key twice)
AccelerateConfig read_accelerate_config(const std::filesystem::path& path);

/// What leads to a failure, and what has no effect. Without a model only what the file itself says.
std::vector<Diagnostic> check_accelerate_config(const AccelerateConfig& config, const ResolvedModel* model);

} // namespace tieshard::cli

// tieshard/cli/accelerate_fields.h
//
// Whether accelerate takes each field and each value of its YAML, before anything is said about a model.
//
// Flow:   accelerate_config -> [this]
// Source: accelerate's ClusterConfig, FullyShardedDataParallelPlugin and the arguments of `accelerate launch` (1.15).

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {

struct AccelerateConfig;

/// A finding of the code accelerate-config at `field` of the file `where`.
Diagnostic accelerate_finding(
    Level level, const std::string& where, const std::string& field, std::string why, std::string fix);

/// Fields that accelerate does not know, and values that it refuses or that are of another kind.
std::vector<Diagnostic> check_fields(const AccelerateConfig& config);

} // namespace tieshard::cli

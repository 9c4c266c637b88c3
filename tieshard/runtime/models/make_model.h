// tieshard/runtime/models/make_model.h
//
// From a config to a module without bytes.
//
// Flow: checkpoint/hf_config.h, ties -> [this] -> load

#pragma once

#include <memory>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/ties/tie_registry.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

struct MakeModelOptions {
  at::Device device = at::kMeta;                ///< meta: shapes without bytes, the normal case
  at::ScalarType dtype = at::ScalarType::Float; ///< of the parameters
};

/// Builds the model of `config` with the ties of `ties`, and proves with validate_shared_object that it has them. All
/// parameters require gradients; buffers are computed and on the CPU.
///
/// @throws InputError unknown-architecture (also for a family whose module does not exist yet), config-missing-key,
/// config-value
std::shared_ptr<LanguageModel> make_model(const HfConfig& config,
                                          const TieRegistry& ties,
                                          const MakeModelOptions& options = {});

} // namespace tieshard

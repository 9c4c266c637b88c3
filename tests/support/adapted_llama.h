// tests/support/adapted_llama.h
//
// Configurations of adapters for the tiny Llamas, and their plans.

#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tieshard/core/adapters/lora_plan.h"

namespace tieshard::testing {

inline LoraConfig lora_on(std::vector<std::string> names, TiedTarget tied = TiedTarget::kRefuse) {
  LoraConfig config{.rank = 3, .alpha = 6, .tied = tied, .seed = 5};
  config.targets.names = std::move(names);
  return config;
}

inline LoraPlan lora_plan_for(const std::filesystem::path& directory, const LoraConfig& config) {
  const ResolvedModel model = resolve_model(directory);
  return plan_lora(config, adaptable_modules(model), model.table, model.ties);
}

} // namespace tieshard::testing

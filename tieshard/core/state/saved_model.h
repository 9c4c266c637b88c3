// tieshard/core/state/saved_model.h
//
// The model that a training checkpoint holds, as its manifest says it: names, shapes, ties, and the config beside them.
//
// Flow: find_checkpoint -> [this] -> core/doctor/saved_check.h, cli (inspect, ties)

#pragma once

#include <filesystem>
#include <vector>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/state/find_checkpoint.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard {

struct SavedModel {
  FoundCheckpoint found{};
  HfConfig config{};              ///< of the checkpoint's config.json; empty where it has none
  const Family* family = nullptr; ///< of the config; null: not known
  ParameterTable table{};         ///< every name, an alias behind its canonical name
  TieRegistry ties{};
  std::vector<TieGroup> groups{}; ///< of the manifest, with the evidence that it records

  /// The family's units; none where the architecture is not known.
  std::vector<UnitSpec> units() const;
};

/// Whether `path` is a training checkpoint, a run or its checkpoints/, and no model: it is asked of names alone.
bool is_training_checkpoint(const std::filesystem::path& path);

/// @throws InputError what find_checkpoint, HfConfig::parse and TieRegistry::from_map throw
SavedModel open_saved_model(const std::filesystem::path& path, Verify verify);

} // namespace tieshard

// tieshard/core/ties/resolved_model.h
//
// From a directory to a model that can be planned: the one way in for every verb and for the runtime.
//
// Flow: checkpoint, families, tie_registry.h -> [this] -> plan, cli, runtime/train

#pragma once

#include <filesystem>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard {

struct ResolveOptions {
  TieOptions ties{};
  bool rename = true; ///< recognise names with a foreign prefix (`--no-rename` refuses them)
  SafetensorsLimits limits{};
};

/// A checkpoint whose tensors have the model's names, and what is known of its model.
struct ResolvedModel {
  Checkpoint checkpoint;
  const Family* family = nullptr; ///< null: the architecture is not known, `table` is made of the stored names
  ParameterTable table{};
  TieRegistry ties{};
  std::vector<Diagnostic> findings{}; ///< warnings and notes of checkpoint, names and ties, in that order

  /// The family's units; none where the architecture is not known.
  std::vector<UnitSpec> units() const;
};

/// Opens `directory`, finds its family, gives its tensors the model's names and resolves its ties. Reads headers only,
/// and both copies where a tied weight is stored twice. Equal on every rank.
///
/// An architecture that is not known is taken by its stored names, with the warning unknown-architecture.
/// @throws InputError whatever Checkpoint::open, Family::table, find_name_mapping, find_wrapper_mapping and
///         TieRegistry::of throw
ResolvedModel resolve_model(const std::filesystem::path& directory, const ResolveOptions& options = {});

} // namespace tieshard

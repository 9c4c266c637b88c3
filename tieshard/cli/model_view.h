// tieshard/cli/model_view.h
//
// What the torch-free verbs look at: a checkpoint, the parameters that its config asks for, and the ties between them.
//
// Flow: inspect, ties, plan, demo -> [this] -> core/checkpoint, core/families, core/ties

#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard::cli {

/// An opened checkpoint and what is known of its model.
struct ModelView {
  Checkpoint checkpoint;
  const Family* family = nullptr; ///< null when the architecture is not known
  ParameterTable table{};         ///< of the family; of the stored tensors when the architecture is not known
  TieRegistry ties{};

  /// Everything that checkpoint and ties found, in that order.
  std::vector<Diagnostic> findings() const;
};

/// Ties that a flag declares beside those of config and files, alias -> canonical.
using DeclaredTies = std::map<std::string, std::string>;

/// @throws InputError whatever Checkpoint::open, the family's table and TieRegistry throw; unknown-architecture
ModelView open_model(const std::filesystem::path& directory, const DeclaredTies& declared = {});

/// As open_model; a model whose architecture is not known is shown by its stored tensors alone.
ModelView open_any_model(const std::filesystem::path& directory);

/// "LlamaForCausalLM"; the model type when the config names no architecture.
std::string architecture_name(const HfConfig& config);

/// Where a stored tensor lies: "model.safetensors @ 31,104" (byte of the file).
std::string location(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// "1 tie group", "2 shards": `one` in the plural where `count` is not 1.
std::string counted(std::size_t count, const std::string& one);

} // namespace tieshard::cli

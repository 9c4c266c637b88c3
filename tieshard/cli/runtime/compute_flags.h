// tieshard/cli/runtime/compute_flags.h
//
// What the verbs that compute with a model and do not train it share: its directory, dtype, adapter, and how it is
// opened and loaded.
//
// Flow: eval_verb, generate_verb, forward_verb -> [this] -> runtime/train/parallelize.h

#pragma once

#include <filesystem>
#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/runtime/ranks.h"
#include "tieshard/runtime/train/parallelize.h"

namespace tieshard::cli {

struct ComputeFlags {
  RankFlags ranks{};
  std::filesystem::path model{};
  std::string dtype = "float32";
  std::filesystem::path adapter{};
  std::string lora_tied{};
  OpenFlags open{};
  LoadFlags load{};

  /// @throws InputError bad-flag
  ParallelizeOptions options() const;
};

/// Adds --dtype, --adapter, --lora-tied and the flags of opening and loading.
void add_compute_flags(CLI::App& verb, ComputeFlags& flags);

} // namespace tieshard::cli

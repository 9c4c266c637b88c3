// tieshard/cli/merge_adapter.h
//
// `tieshard merge-adapter BASE ADAPTER OUT`: a checkpoint with a LoRA adapter added into its weights.
//
// Flow: app -> [this] -> core/adapters/merge.h

#pragma once

#include <filesystem>
#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct MergeAdapterOptions {
  std::filesystem::path base{};
  std::filesystem::path adapter{};
  std::filesystem::path out{};
  OpenFlags open{};
  std::string lora_tied{};
  bool json = false;
};

/// @throws whatever merge_adapter throws; InputError bad-flag
int run_merge_adapter(const MergeAdapterOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_merge_adapter(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

// tieshard/core/adapters/merge.h
//
// A checkpoint with a LoRA adapter added into its weights: W + scaling * B A, a slice of rows at a time, without torch.
//
// Flow:   base directory, adapter directory -> [this] -> a directory that transformers loads
// Source: PEFT's merge_and_unload.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/adapters/lora_config.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard {

struct MergeReport {
  std::filesystem::path directory;
  std::vector<std::string> files{}; ///< safetensors files, as the base's
  std::int64_t tensors = 0;         ///< of all files
  std::int64_t merged = 0;          ///< that an adapter was added to
  std::int64_t replaced = 0;        ///< that modules_to_save took the place of
  std::uint64_t bytes = 0;          ///< of all files
  double seconds = 0;
  std::vector<Diagnostic> findings{}; ///< of the base
};

/// Writes `out`: the base's files with the same names, tensors and dtypes, and what stands beside them
/// (companion_files.h). Sums are float32 and rounded once. Staged, synced and renamed: complete or absent. Holds the
/// adapter and one slice of rows (4 MiB) in memory.
///
/// What `options` choose about ties stands in `out` itself. A tied weight is merged once and written once, under its
/// canonical name, and config.json says that it is tied; weights that are untied are both there, and config.json says
/// that, too. A tie that config.json cannot tell (one of `options.explicit_ties`) has its value under each name.
///
/// @param tied  what becomes of an adapter on a tied weight; nothing: what the adapter's configuration says
/// @throws InputError output-exists, directory-in-use, bad-flag (`out` is no name), tied-target (an adapter for one use
/// of a tied weight), dtype-not-loadable (a
///         quantised weight), shape-mismatch, not-finite (a sum that is not), missing-parameter (a weight that the base
///         does not store), and what resolve_model, AdapterFile and plan_lora throw; PeerError disk-full, io-failed
MergeReport merge_adapter(const std::filesystem::path& base,
                          const std::filesystem::path& adapter,
                          const std::filesystem::path& out,
                          const ResolveOptions& options = {},
                          std::optional<TiedTarget> tied = {});

} // namespace tieshard

// tieshard/core/adapters/merge.h
//
// A checkpoint with a LoRA adapter added into its weights: W + scaling * B A, a slice of rows at a time, without torch.
//
// Flow:   base directory, adapter directory -> [this] -> a directory that transformers loads
// Source: PEFT's merge_and_unload.

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

/// Writes `out`: the base's files with the same names, tensors and dtypes, and what stands beside them. Sums are
/// float32 and rounded once. A tied weight is merged once; where a file holds it under several names, in each of them.
/// Staged, synced and renamed: complete or absent. Holds the adapter and one slice of rows (4 MiB) in memory.
///
/// @throws InputError output-exists, tied-target (an adapter for one use of a tied weight), dtype-not-loadable (a
///         quantised weight), shape-mismatch, not-finite (a sum that is not), and what resolve_model, AdapterFile and
///         plan_lora throw; PeerError disk-full, io-failed
MergeReport merge_adapter(const std::filesystem::path& base,
                          const std::filesystem::path& adapter,
                          const std::filesystem::path& out,
                          const ResolveOptions& options = {});

} // namespace tieshard

// tieshard/core/state/export_checkpoint.h
//
// A plain Hugging Face directory from sharded files, without torch and in bounded memory.
//
// Flow:   sharded_files, manifest -> [this] -> a directory that transformers loads
// Source: transformers save_pretrained (file names, index, metadata).

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/error.h"

namespace tieshard {

struct ExportCheckpointOptions {
  /// Whatever the files hold (`tieshard merge`): without config.json the tensors alone are written, which a finding
  /// says; dtypes stay as they are stored.
  bool plain = false;
  std::filesystem::path config_from{};         ///< where config.json, tokenizer and generation files are; empty: `in`
  std::optional<DType> dtype{};                ///< of all floating-point tensors; nothing: the base model's, see below
  std::uint64_t max_shard_bytes = 50ULL << 30; ///< a larger model goes to several files with an index
  std::uint64_t memory = 128 << 20;
  int threads = 1;
  bool verify = false; ///< hashes of `in` before it is used
  std::function<void(std::uint64_t done, std::uint64_t total)> on_progress{};
};

struct ExportCheckpointReport {
  std::filesystem::path directory{};
  std::vector<std::string> files{};
  std::vector<std::string> left_out{}; ///< optimizer state, and aliases
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::vector<Diagnostic> findings{};
};

/// Writes `out`, which must not be there: parameters only, canonical names only, rows beyond the configuration's
/// vocabulary trimmed (a finding says it), dtypes as config.json's dtype says (as stored where it says none); index
/// from what was written; all of it reopened and compared before the rename. Names and shapes are held against the
/// family's table where the architecture is known.
/// @throws InputError output-exists, bad-flag (as reshard_checkpoint), config-missing (with --config-from as the
/// remedy), missing-parameter,
///         shape-mismatch, not-finite (values that are infinite in the dtype that is asked for), and as find_checkpoint
///         and ShardedFiles::open; PeerError disk-full, io-failed, export-mismatch
ExportCheckpointReport export_checkpoint(const std::filesystem::path& in,
                                         const std::filesystem::path& out,
                                         const ExportCheckpointOptions& options);

} // namespace tieshard

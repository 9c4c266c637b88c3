// tieshard/core/state/reshard.h
//
// A training checkpoint for another number of ranks or another shard dimension, without torch and in bounded memory.
//
// Flow: sharded_files, manifest -> [this] -> hashed_file, a new checkpoint directory

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

struct ReshardOptions {
  std::int64_t ranks = 1;
  std::optional<ShardDimPolicy> shard_dim{}; ///< nothing: each parameter stays on the dimension that it is on
  std::map<std::string, int> dims{};         ///< overrides, by name
  std::uint64_t memory = 128 << 20;          ///< the most that buffers take
  int threads = 1;
  bool verify = false;                                                        ///< hashes of IN before it is used
  std::function<void(std::uint64_t done, std::uint64_t total)> on_progress{}; ///< bytes written
};

struct ReshardReport {
  std::filesystem::path directory{};
  std::int64_t ranks = 0;
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0; ///< of the new shard files
  double seconds = 0;
  std::vector<Diagnostic> findings{};
};

/// Writes `out`, which must not be there: staged, synced, renamed. What is no tensor is copied; a directory without a
/// manifest (DCP's, a plain Hugging Face one) becomes sharded files without one, which state a tensor's whole shape
/// only where the source does (a finding says so).
/// @throws InputError output-exists, bad-flag (OUT has no name, or lies in IN's run), and as find_checkpoint and
/// ShardedFiles::open; UsageError tied-weight-on-vocab,
///         unknown-parameter, bad-shard-dim, bad-rank-count; PeerError disk-full, io-failed
ReshardReport reshard_checkpoint(const std::filesystem::path& in,
                                 const std::filesystem::path& out,
                                 const ReshardOptions& options);

} // namespace tieshard

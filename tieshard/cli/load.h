// tieshard/cli/load.h
//
// `tieshard load DIR --ranks N`: loads as training would, without a model class and without torch, and gives account.
//
// Flow: app -> [this] -> core/io/local_shards.h in one process a rank (rank_processes), load_text, shard_files

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct LoadVerbOptions {
  std::string directory{};
  std::int64_t ranks = 1;
  std::optional<std::int64_t> rank{}; ///< only this one; none: all
  OpenFlags open{};
  ShardFlags shard{};
  LoadFlags load{};
  int threads = 0;         ///< of each rank; 0: the processors shared among the ranks, at most 8 each
  std::string out{};       ///< directory for the shards; empty: they are dropped
  std::int64_t values = 0; ///< first elements of each part to show, with `json`
  bool json = false;
};

/// Loads every rank at once, touches each page, prints the account of each. All that fails is said, each kind once.
/// @return kExitSuccess, or the status of the first failure
/// @throws InputError bad-flag, output-exists, and whatever resolve_model, ShardPlan::build and find_weight_sources
///         throw; PeerError io-failed, disk-full
int run_load(const LoadVerbOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_load(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

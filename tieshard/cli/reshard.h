// tieshard/cli/reshard.h
//
// `tieshard reshard IN OUT --ranks M`: a training checkpoint for another number of ranks or other dimensions.
//
// Flow: app -> [this] -> core/state/reshard.h

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct ReshardVerbOptions {
  std::filesystem::path in{};
  std::filesystem::path out{};
  std::int64_t ranks = 1;
  std::string shard_dim{};         ///< last | first; empty: as it is
  std::vector<std::string> dims{}; ///< "NAME=D"
  std::string memory{};            ///< a size; empty: the default of ReshardOptions
  int threads = 0;                 ///< 0: the processors, at most 8
  bool verify = false;
  bool json = false;
};

/// @throws whatever reshard_checkpoint throws; InputError bad-flag
int run_reshard(const ReshardVerbOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_reshard(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

// tieshard/cli/model_flags.h
//
// The flags of every verb that opens a model, shards it or loads it: one meaning and one help text each.
//
// Flow: ties, plan, inspect, doctor, load, cli/runtime -> [this] -> core/ties/resolved_model.h, core/plan, core/io

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/io/local_shards.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/weight_source.h"
#include "tieshard/core/ties/resolved_model.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace tieshard::cli {

/// How a checkpoint is opened: --tie, --untie, --on-tie-conflict, --no-rename, --max-header-bytes.
struct OpenFlags {
  std::vector<std::string> ties{};       ///< "ALIAS=CANONICAL"
  std::vector<std::string> untied{};     ///< "NAME"
  std::string on_tie_conflict = "untie"; ///< untie | error | canonical | alias
  bool no_rename = false;
  std::string max_header_bytes{};

  /// @throws InputError bad-flag
  ResolveOptions options() const;
};

/// How a model is laid onto ranks: --shard-dim, --dim, --param-dtype.
struct ShardFlags {
  std::string shard_dim = "last";  ///< last | first
  std::vector<std::string> dims{}; ///< "NAME=D"
  std::string param_dtype{};       ///< a name that torch uses; empty: as stored

  ShardDimPolicy policy() const;
  /// @throws InputError bad-flag
  std::optional<DType> dtype() const;
};

/// What a load may do: --init, --read-buffer, --host-ram-per-rank, --no-mmap, --no-check-values.
struct LoadFlags {
  std::vector<std::string> inits{}; ///< "NAME=RULE"
  std::string read_buffer{};        ///< a size; empty: the default of LocalShardOptions
  std::string host_ram{};           ///< a size; empty: no limit
  bool no_mmap = false;
  bool no_check_values = false;

  /// @throws InputError bad-flag
  WeightSourceOptions sources() const;
  /// @throws InputError bad-flag
  LocalShardOptions options() const;
};

void add_open_flags(CLI::App& verb, OpenFlags& flags);
/// Those that say the dimensions, for verbs whose --param-dtype has another default.
void add_shard_dim_flags(CLI::App& verb, ShardFlags& flags);
void add_shard_flags(CLI::App& verb, ShardFlags& flags);
void add_load_flags(CLI::App& verb, LoadFlags& flags);

/// Of a plan, a load or a diagnosis.
inline constexpr std::int64_t kMostRanks = 65536;

/// --ranks N, from 1 to kMostRanks.
void add_ranks(CLI::App& verb, std::int64_t& ranks);

/// A size as "16MiB". @throws InputError bad-flag
std::uint64_t size_flag(const std::string& flag, const std::string& text);

/// A dtype that parameters can be trained in, as torch spells it. @throws InputError bad-flag
DType dtype_flag(const std::string& flag, const std::string& text);

} // namespace tieshard::cli

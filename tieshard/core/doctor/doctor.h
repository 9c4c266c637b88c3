// tieshard/core/doctor/doctor.h
//
// Would this checkpoint load, and load right? Runs what the loader runs and collects what it would say, all of it.
//
// Flow:   core/ties/resolved_model.h, core/plan -> [this] -> cli/doctor

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/doctor/room_check.h"
#include "tieshard/core/doctor/value_check.h"
#include "tieshard/core/plan/rank_bytes.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/weight_source.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard {

struct DoctorOptions {
  std::int64_t ranks = 1;
  ShardDimPolicy policy = ShardDimPolicy::kLast;
  std::map<std::string, int> dims{}; ///< dimensions for single parameters, as ShardPlanOptions::dims
  ResolveOptions resolve{};
  WeightSourceOptions sources{};
  std::optional<DType> param_dtype{};      ///< of all parameters in memory; nothing: as stored (memory_dtype.h)
  std::uint64_t read_buffer = 16 << 20;    ///< bytes that a load holds beyond the shards
  std::optional<std::uint64_t> host_ram{}; ///< bytes that a load may add to a rank's process
  bool check_values = true;                ///< look for NaN, infinity and weights of zeros
  bool deep = false;                       ///< in every value, not in kValueBudget bytes of them
  int threads = 1;                         ///< of that scan
  std::optional<Room> room{};              ///< of the machine; nothing: what this one has
};

/// Bytes of values that a diagnosis looks at unless it is deep: some ten milliseconds of reading.
inline constexpr std::uint64_t kValueBudget = 64 << 20;

/// What the findings come to.
enum class Verdict {
  kOk,     ///< loads, and nothing is to be said but notes
  kWarn,   ///< loads, with a warning
  kRefuse, ///< the loader refuses it
};

/// Stable spelling for output: "ok", "warn", "refuse".
std::string_view id(Verdict verdict);

/// What is gathered together, whole, in the parameters' dtypes in memory.
struct UnitBytes {
  std::string name{}; ///< empty: the root
  std::uint64_t bytes = 0;
  std::uint64_t expert_bytes = 0; ///< the part of them that is of experts
};

/// Fields after `findings` are filled as far as the checks came.
struct DoctorReport {
  std::vector<Diagnostic> findings; ///< errors first, then warnings, then notes
  std::string architecture{};       ///< first of config.json's `architectures`, else its model_type
  std::string family{};             ///< of the config; empty: not known to tieshard
  std::vector<TieGroup> ties{};
  std::size_t files = 0;
  std::size_t tensors = 0; ///< stored
  std::uint64_t stored_bytes = 0;
  std::int64_t parameters = 0;    ///< elements, each storage once
  std::vector<RankBytes> ranks{}; ///< empty when the checkpoint cannot be loaded
  std::vector<UnitBytes> units{};
  std::uint64_t load_bytes = 0; ///< that a load adds to the process of the largest rank
  ValueCheckCount values{};     ///< bytes that were looked at, and those that were not

  Verdict verdict() const;

  /// Whether a finding says that something is there and cannot be read.
  bool unreadable() const;
};

/// Checks the checkpoint in `directory` for a load by `options.ranks` ranks. What the loader would throw as an
/// InputError (or, for a flag of the caller's, as a UsageError) is a finding of level error; after it the checks go on
/// where their result still means something: other files, the config, the values. A training checkpoint or a run is
/// looked at as saved_check.h says.
/// @throws PeerError io-failed
DoctorReport diagnose(const std::filesystem::path& directory, const DoctorOptions& options = {});

} // namespace tieshard

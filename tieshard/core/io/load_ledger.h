// tieshard/core/io/load_ledger.h
//
// The account of a load: every parameter traced to a file and an offset, or to an initialisation that was asked for.
//
// Flow: local_shards.h -> [this] -> runtime/load, cli (printed), tests

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/not_finite.h"
#include "tieshard/core/plan/weight_source.h"

namespace tieshard {

/// What happened to one canonical parameter on this rank.
struct LedgerEntry {
  std::string fqn;
  std::vector<std::string> aliases; ///< names that were given their bytes by this entry too
  std::string stored_name;          ///< name in the file
  std::string file;                 ///< relative to the checkpoint
  std::uint64_t offset = 0;         ///< of the whole tensor's first byte in that file
  std::string scales{};             ///< name in the file of the scales that were applied; empty: none
  Encoding encoding = Encoding::kPlain;
  DType stored_dtype = DType::kF32;
  std::string initialised{};       ///< the rule, where no file holds the parameter; empty: from the file
  bool mapped = false;             ///< private pages of the file instead of a copy
  std::int64_t elements = 0;       ///< that this rank holds
  std::int64_t whole_elements = 0; ///< of the parameter
  std::int64_t padding = 0;        ///< elements that the collectives add to this rank's part, up to the largest part
  int materialized = 0;            ///< times it was given storage by this load: 1, or 0 when it had it before
};

struct LoadLedger {
  std::vector<LedgerEntry> entries; ///< in registration order; each canonical parameter once
  std::vector<std::string> unused;  ///< stored tensors that no parameter uses
  std::vector<Diagnostic> findings;
  std::vector<NotFinite> not_finite; ///< of this rank's parts, in the order of the files; the finding names them, too
  std::uint64_t bytes_read = 0;      ///< asked from the files by this rank, copied
  std::uint64_t bytes_mapped = 0;    ///< of the slices that are mapped
  std::uint64_t shard_bytes = 0;     ///< in memory, mapped ones included
  std::uint64_t predicted_bytes = 0; ///< what the load was planned to add to the process at its peak
  double seconds = 0;

  /// The entry that gave `fqn` its bytes: a canonical name or an alias. Null for an unknown name.
  const LedgerEntry* find(std::string_view fqn) const;

  /// Parameters that got their storage in this load.
  std::int64_t materialized() const;

  /// Parameters that had it before and were left as they were.
  std::int64_t already_materialized() const;

  /// Parameters that no file holds and that got a value because the caller asked for it.
  std::int64_t initialised() const;

  /// Elements of this rank.
  std::int64_t elements() const;
};

} // namespace tieshard

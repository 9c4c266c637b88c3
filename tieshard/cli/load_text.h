// tieshard/cli/load_text.h
//
// The account of a load as text and as JSON. Ranks answer in JSON, so both are made from that.
//
// Flow: load -> [this] -> table, json_output

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/cli/console.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/core/io/local_shards.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard::cli {

/// What a rank's process measured beside its ledger.
struct RankMeasure {
  std::int64_t rank = 0;
  double seconds = 0;           ///< of the load, with every page touched
  std::uint64_t peak_bytes = 0; ///< resident memory at its largest, above that of the process before the load
};

/// {"rank", "seconds", "peak_bytes", "predicted_bytes", "shard_bytes", "bytes_read", "bytes_mapped", "elements",
/// "initialised", "padding", "findings", "ledger": [{"name", "aliases", "stored_as", "file", "offset", "scales",
/// "encoding", "stored_dtype", "dtype", "shape", "whole_shape", "dim", "elements", "padding", "mapped", "initialised",
/// "materialized", "values"}]}. Elements are those of this rank; "values" are the first `values` of them.
OrderedJson rank_document(const LocalShards& loaded,
                          const ShardPlan& plan,
                          const RankMeasure& measure,
                          std::int64_t values);

/// What is said of the load as a whole.
struct LoadAccount {
  const ResolvedModel& model;
  const ShardPlan& plan;
  std::string shard_dim;            ///< as the flag says it
  std::vector<std::string> unused;  ///< stored tensors that no parameter uses
  std::vector<Diagnostic> findings; ///< each once
  std::vector<OrderedJson> ranks;   ///< rank_document of each that was loaded
};

/// {"architecture", "family", "ranks", "shard_dim", "parameters", "ties", "unused", "findings", "per_rank"}
OrderedJson load_document(const LoadAccount& account);

void print_load(const LoadAccount& account, const Stream& out);

} // namespace tieshard::cli

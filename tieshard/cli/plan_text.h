// tieshard/cli/plan_text.h
//
// A ShardPlan as tables for a person, and as JSON.
//
// Flow: plan -> [this] -> plan_summary, name_pattern, table

#pragma once

#include "tieshard/cli/console.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/cli/model_view.h"
#include "tieshard/cli/plan_summary.h"

namespace tieshard::cli {

/// One screen: the model, its units, each kind of rank and of host, ties, uneven and empty parts.
///
/// @param shard_dim  the policy's name, "last" or "first"
/// @param bandwidth  bytes a second that a rank can receive; 0: no times
void print_plan(const ResolvedModel& view,
                const ShardPlan& plan,
                const PlanSummary& summary,
                const std::string& shard_dim,
                std::uint64_t bandwidth,
                const Stream& out);

/// A line for each parameter: shape, dim, and the sizes of its parts on the ranks.
void print_parameters(const ShardPlan& plan, const Stream& out);

/// {"architecture", "ranks", "shard_dim", "param_dtype", "elements", "expert_bytes", "parameters": [...],
/// "units": [...], "per_rank": [...], "per_host": [...], "step", "groups": [...], "uneven", "empty", "replicated",
/// "findings"}
///
/// "parts" of a parameter are runs of equal ones, at most three: {"first_rank", "ranks", "offset", "size"}; the part of
/// rank first_rank + i begins at offset + i * size.
OrderedJson plan_document(const ResolvedModel& view,
                          const ShardPlan& plan,
                          const PlanSummary& summary,
                          const std::string& shard_dim,
                          std::uint64_t bandwidth,
                          const std::vector<Diagnostic>& findings);

} // namespace tieshard::cli

// tieshard/cli/runtime/dry_run.h
//
// `tieshard train --dry-run`: everything that a run decides before its first step, without starting ranks, reading
// weights or writing anything.
//
// Flow: train_verb -> [this] -> plan (run_plan), runtime/train

#pragma once

#include <cstdint>

#include "tieshard/cli/plan.h"
#include "tieshard/runtime/train/train_config.h"

namespace tieshard::cli {

/// Checks data, schedule, output directory, groups, adapter, names, ties and sources of every parameter, and shows the
/// plan with the memory that it predicts.
/// @param ranks  all ranks of the run
/// @param plan   what `tieshard plan` would be told
/// @return the exit status; what the run would refuse is thrown as by it
int dry_run(const TrainConfig& config, std::int64_t ranks, const PlanOptions& plan, const Console& console);

/// "raw uint16, 12,345 tokens, ...", as a run says it before it loads.
void show_data(const Console& console, const std::string& flag, const TokenData& data);

} // namespace tieshard::cli

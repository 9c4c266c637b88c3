// tieshard/cli/memory_text.h
//
// The memory that a rank will need while it trains, as a table for a person, and as JSON.
//
// Flow: plan -> [this] -> core/plan/training_memory.h, table

#pragma once

#include <optional>

#include "tieshard/cli/console.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/plan/training_memory.h"

namespace tieshard::cli {

/// A line for each term and one for their sum; one line that says why where there is no prediction.
void print_training_memory(const HfConfig& config,
                           const TrainingStep& step,
                           const std::optional<TrainingMemory>& memory,
                           const Stream& out);

/// {"seq", "batch", "compute_dtype", "reshard_after_forward", "peak_bytes", "terms": {...}}, the terms in bytes;
/// without a prediction both are null and "why" says so.
OrderedJson training_document(const HfConfig& config,
                              const TrainingStep& step,
                              const std::optional<TrainingMemory>& memory);

} // namespace tieshard::cli

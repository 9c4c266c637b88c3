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

/// What is known of a step: its whole memory, or all but what the layers keep of a forward, or nothing.
struct TrainingPrediction {
  std::optional<TrainingMemory> memory{};
  bool with_activations = false;
};

/// A line for each term and one for their sum, and one that says what is not in it; that one alone where there is no
/// prediction.
void print_training_memory(const HfConfig& config,
                           const TrainingStep& step,
                           const TrainingPrediction& prediction,
                           const Stream& out);

/// {"seq", "batch", "compute_dtype", "reshard_after_forward", "peak_bytes", "terms": {...}}, the terms in bytes.
/// Without activations peak_bytes is null, "why" says so, and the sum of the terms is "peak_without_activations_bytes";
/// without a prediction the terms are null too.
OrderedJson training_document(const HfConfig& config, const TrainingStep& step, const TrainingPrediction& prediction);

} // namespace tieshard::cli

// tieshard/runtime/generate/generate.h
//
// A text goes on: tokens out of a model, one after the other.
//
// Flow:   cli/runtime/generate_verb -> [this] -> core/generate/sampler, models/kv_cache
// Source: transformers' GenerationMixin.generate, greedy search and sampling.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tieshard/core/generate/sampler.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  SamplingOptions sampling{};
  std::vector<std::int64_t> end_tokens{};             ///< any of them ends the text
  bool cache = true;                                  ///< keep keys and values; false: compute all tokens each time
  std::function<void(std::int64_t token)> on_token{}; ///< called for each new token as it comes
};

struct Generation {
  std::vector<std::int64_t> tokens; ///< new ones, the one that ended the text too
  bool ended = false;               ///< by an end token, not by their number
};

/// Goes on after `prompt`, one sequence on one process, without gradients and dropout; afterwards the model trains or
/// not as before. Pre: the prompt's tokens are in the vocabulary, and there is at least one
/// @throws UsageError wrong-state for an empty prompt, and for a model that is no decoder; InputError not-finite
Generation generate(LanguageModel& model, const std::vector<std::int64_t>& prompt, const GenerateOptions& options);

} // namespace tieshard

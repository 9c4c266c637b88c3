// tieshard/core/generate/end_tokens.h
//
// The tokens after which a model has said what it had to say.
//
// Flow:   cli/runtime/generate_verb -> [this] -> runtime/generate
// Source: transformers' GenerationConfig: eos_token_id of generation_config.json, else of config.json.

#pragma once

#include <cstdint>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"

namespace tieshard {

/// eos_token_id, one number or several; of an absent or null one there are none. generation_config.json is asked before
/// config.json, as a whole: where it is there and has none, config.json is asked.
/// @throws InputError config-value (something else than non-negative whole numbers), what parse_json throws
std::vector<std::int64_t> end_tokens(const Checkpoint& checkpoint);

} // namespace tieshard

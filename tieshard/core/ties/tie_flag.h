// tieshard/core/ties/tie_flag.h
//
// The tie flag of a config.json that is written beside weights: what was decided about ties has to stand in it.
//
// Flow:   tie_registry -> [this] -> core/adapters/merge, runtime/state/export_layout
// Source: transformers' tie_word_embeddings.

#pragma once

#include <optional>
#include <string>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard {

/// The flag that config.json has to get, where `ties` differ from what it says (untied after a tie-conflict or by the
/// caller, or tied on a file's word); nothing where it is right, and where the family is not known. Ties that a family
/// always has are none of the flag's.
std::optional<bool> changed_tie_flag(const TieRegistry& ties, const Checkpoint& source);

/// The text of a config.json with the flag set, where the file has it or at its top.
/// @param config  what `text` is. Pre: it has been parsed
std::string with_tie_flag(const std::string& text, const HfConfig& config, bool tied);

} // namespace tieshard

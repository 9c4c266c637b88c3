// tieshard/core/ties/tie_evidence.h
//
// Why two names are held to be one parameter.
//
// Flow: tie_rules.h, tie_registry.h -> [this]

#pragma once

#include <string>
#include <string_view>

namespace tieshard {

/// Kinds of evidence for a tie.
enum class TieEvidence {
  kModuleIdentity, ///< the module registers one tensor under both names
  kConfigFlag,     ///< config.json says so
  kFamilyRule,     ///< the family's default, config.json being silent
  kFileMetadata,   ///< __metadata__ of a safetensors file records the alias
  kExplicitMap,    ///< the caller said so
  kEqualBytes,     ///< both names are stored, with equal bytes (never evidence on its own)
};

/// Stable spelling for output, e.g. "config-flag".
std::string_view id(TieEvidence evidence);

/// One reason, with the words to show for it.
struct TieReason {
  TieEvidence evidence;
  std::string
      text; ///< e.g. "config.json: tie_word_embeddings = true; llama: lm_head.weight -> model.embed_tokens.weight"
};

} // namespace tieshard

// tieshard/core/ties/tie_group.h
//
// Names that share one storage, and why they are held to.
//
// Flow: tie_rules.h, tie_checks.h, tie_registry.h -> [this]

#pragma once

#include <string>
#include <string_view>
#include <vector>

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
  std::string flag{}; ///< of the command line, "--tie A=B", where the caller said so
};

/// Another name of a parameter.
struct TieAlias {
  std::string name;
  std::vector<TieReason> reasons; ///< at least one
};

/// Names that share one storage. `canonical` owns it: the first name in registration order.
struct TieGroup {
  std::string canonical;
  std::vector<TieAlias> aliases; ///< in registration order
  std::string source{};          ///< name that is read, where copies differ and the caller chose; empty: first stored
};

} // namespace tieshard

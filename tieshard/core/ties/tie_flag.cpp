#include "tieshard/core/ties/tie_flag.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/families/family.h"

namespace tieshard {

std::optional<bool> changed_tie_flag(const TieRegistry& ties, const Checkpoint& source) {
  const Family* family = find_family(source.config());
  if (family == nullptr) {
    return std::nullopt;
  }
  bool has_head_tie = false;
  for (const FamilyTie& tie : family->ties(source.config())) {
    has_head_tie = has_head_tie || (!tie.always && ties.canonical(tie.alias) == ties.canonical(tie.canonical));
  }
  const auto& flag = source.config().tie_word_embeddings();
  const bool said = flag ? flag->value : family->tied_by_default();
  return said == has_head_tie ? std::nullopt : std::optional<bool>(has_head_tie);
}

std::string with_tie_flag(const std::string& text, const HfConfig& config, bool tied) {
  nlohmann::ordered_json changed = nlohmann::ordered_json::parse(text);
  const auto& said = config.tie_word_embeddings();
  (said && said->is_nested() ? changed["text_config"] : changed)["tie_word_embeddings"] = tied;
  return changed.dump(2) + "\n";
}

} // namespace tieshard

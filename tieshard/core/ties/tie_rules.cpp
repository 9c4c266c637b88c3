#include "tieshard/core/ties/tie_rules.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "tieshard/core/families/family.h"
#include "tieshard/core/families/stored_table.h"

namespace tieshard {
namespace {

/// Positions of the names of a table.
class NameIndex {
 public:
  explicit NameIndex(const ParameterTable& table) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      positions_.emplace(table[i].fqn, i);
    }
  }

  std::optional<std::size_t> find(std::string_view fqn) const {
    const auto found = positions_.find(fqn);
    return found == positions_.end() ? std::nullopt : std::optional<std::size_t>(found->second);
  }

 private:
  std::map<std::string_view, std::size_t> positions_;
};

DeclaredTie ordered(std::size_t a, std::size_t b, TieReason reason) {
  return {.first = std::min(a, b), .second = std::max(a, b), .reason = std::move(reason)};
}

std::string arrow(std::string_view alias, std::string_view canonical) {
  return concat(alias, " -> ", canonical);
}

/// What the config says of its tie flag, for messages.
std::string flag_text(const std::optional<TieFlag>& flag) {
  return flag ? concat("config.json: ", flag->where, " = ", flag->value ? "true" : "false")
              : std::string("config.json: no tie_word_embeddings");
}

Diagnostic nested_flag(const HfConfig& config, const std::string& canonical, const std::string& alias) {
  return {.level = Level::kWarning,
          .code = Code::kTieFlagNested,
          .what = "the tie flag stands in text_config only",
          .where = concat(config.where(), ", ", config.tie_word_embeddings()->where, ", ", alias, " and ", canonical),
          .why = concat("model_type ",
                        config.model_type(),
                        " has no tie_word_embeddings of its own; that of text_config is taken for the part with the "
                        "head, so that ",
                        alias,
                        " is ",
                        canonical),
          .fix = "write tie_word_embeddings at the top of config.json"};
}

/// Without a family's table the flag is all there is: it ties the head to the one input embedding that is stored.
void add_flag_tie(const Checkpoint& checkpoint,
                  const NameIndex& names,
                  std::vector<DeclaredTie>& ties,
                  std::vector<Diagnostic>& findings) {
  const auto& flag = checkpoint.config().tie_word_embeddings();
  const auto tie = flag && flag->value ? embedding_tie_of_stored(checkpoint) : std::nullopt;
  const auto canonical = tie ? names.find(tie->canonical) : std::nullopt;
  const auto alias = tie ? names.find(tie->alias) : std::nullopt;
  if (!canonical || !alias) {
    return;
  }
  ties.push_back(ordered(
      *canonical,
      *alias,
      {TieEvidence::kConfigFlag, concat(flag_text(flag), "; by their names, ", arrow(tie->alias, tie->canonical))}));
  if (flag->is_nested()) {
    findings.push_back(nested_flag(checkpoint.config(), tie->canonical, tie->alias));
  }
}

void add_family_ties(const Checkpoint& checkpoint,
                     const NameIndex& names,
                     std::vector<DeclaredTie>& ties,
                     std::vector<Diagnostic>& findings) {
  const HfConfig& config = checkpoint.config();
  const Family* const family = find_family(config);
  if (family == nullptr) {
    add_flag_tie(checkpoint, names, ties, findings);
    return;
  }
  const auto& flag = config.tie_word_embeddings();
  const bool tied = flag ? flag->value : family->tied_by_default();
  std::string by_default; // pairs that only the family's default decides
  for (const FamilyTie& tie : family->ties(config)) {
    const auto canonical = names.find(tie.canonical);
    const auto alias = names.find(tie.alias);
    if (!canonical || !alias) {
      continue;
    }
    const std::string pair = arrow(tie.alias, tie.canonical);
    if (tie.always) {
      ties.push_back(
          ordered(*canonical, *alias, {TieEvidence::kFamilyRule, concat(family->name(), ": always, ", pair)}));
      continue;
    }
    if (tied && flag) {
      ties.push_back(ordered(
          *canonical, *alias, {TieEvidence::kConfigFlag, concat(flag_text(flag), "; ", family->name(), ": ", pair)}));
    } else if (tied) {
      ties.push_back(ordered(
          *canonical,
          *alias,
          {TieEvidence::kFamilyRule, concat(flag_text(flag), "; ", family->name(), ": tied by default, ", pair)}));
    }
    if (tied && flag && flag->is_nested()) {
      findings.push_back(nested_flag(config, tie.canonical, tie.alias));
    }
    by_default += concat(by_default.empty() ? "" : ", ", tie.alias, " and ", tie.canonical);
  }
  if (!flag && !by_default.empty()) {
    findings.push_back({.level = Level::kNote,
                        .code = Code::kTieFlagDefault,
                        .what = "config.json has no tie flag; the family's default holds",
                        .where = concat(config.where(), ", ", by_default),
                        .why = concat(family->name(), " is ", tied ? "tied" : "untied", " by default"),
                        .fix = "write tie_word_embeddings into config.json"});
  }
}

/// A name that the metadata calls dropped but that is stored was not dropped: the record is stale and says nothing.
void add_metadata_ties(const Checkpoint& checkpoint,
                       const ParameterTable& table,
                       const NameIndex& names,
                       std::vector<DeclaredTie>& ties,
                       std::vector<Diagnostic>& findings) {
  const std::size_t known_otherwise = ties.size();
  for (const SafetensorsFile& file : checkpoint.files()) {
    const std::string file_name = file.file().path().filename().string();
    for (const auto& [dropped, kept] : file.header().metadata) {
      const auto alias = names.find(dropped);
      const auto canonical = names.find(kept);
      if (!alias || !canonical || *alias == *canonical || checkpoint.find(dropped) != nullptr ||
          table[*alias].shape != table[*canonical].shape) {
        continue;
      }
      DeclaredTie tie =
          ordered(*alias,
                  *canonical,
                  {TieEvidence::kFileMetadata, concat(file_name, ": __metadata__ records ", arrow(dropped, kept))});
      const bool declared = std::any_of(
          ties.begin(), ties.begin() + static_cast<std::ptrdiff_t>(known_otherwise), [&tie](const DeclaredTie& other) {
            return other.first == tie.first && other.second == tie.second;
          });
      if (!declared) {
        findings.push_back({.level = Level::kWarning,
                            .code = Code::kTieFromMetadata,
                            .what = "a tie is recorded in file metadata only",
                            .where = concat(file_name, ", ", dropped, " and ", kept),
                            .why = concat(dropped, " is not stored, and neither the module nor config.json ties it"),
                            .fix = "set tie_word_embeddings to true in config.json if the two are one weight"});
      }
      ties.push_back(std::move(tie));
    }
  }
}

void add_explicit_ties(const std::map<std::string, std::string>& explicit_ties,
                       const NameIndex& names,
                       std::vector<DeclaredTie>& ties) {
  for (const auto& [alias, canonical] : explicit_ties) {
    if (alias == canonical) {
      throw InputError({.code = Code::kTieCycle,
                        .what = "a name is declared tied to itself",
                        .where = arrow(alias, canonical),
                        .why = "expected two names",
                        .fix = "name the alias and the parameter that it shares"});
    }
    for (const std::string& asked : {alias, canonical}) {
      if (!names.find(asked)) {
        throw InputError({.code = Code::kTieUnknownName,
                          .what = "a declared tie names no parameter",
                          .where = arrow(alias, canonical),
                          .why = concat("no parameter is called ", asked),
                          .fix = "write full dotted parameter names"});
      }
    }
    ties.push_back(ordered(*names.find(alias),
                           *names.find(canonical),
                           {TieEvidence::kExplicitMap, concat("the caller: ", arrow(alias, canonical))}));
  }
}

} // namespace

std::vector<DeclaredTie> module_ties(const ParameterTable& table) {
  std::vector<DeclaredTie> ties;
  std::map<std::uint64_t, std::size_t> first_with;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto [entry, added] = first_with.emplace(table[i].identity, i);
    if (!added) {
      ties.push_back(ordered(
          entry->second, i, {TieEvidence::kModuleIdentity, "the module registers one tensor under both names"}));
    }
  }
  return ties;
}

std::vector<DeclaredTie> checkpoint_ties(const Checkpoint& checkpoint,
                                         const ParameterTable& table,
                                         const std::map<std::string, std::string>& explicit_ties,
                                         std::vector<Diagnostic>& findings) {
  const NameIndex names(table);
  std::vector<DeclaredTie> ties = module_ties(table);
  add_family_ties(checkpoint, names, ties, findings);
  add_explicit_ties(explicit_ties, names, ties);
  add_metadata_ties(checkpoint, table, names, ties, findings);
  return ties;
}

std::vector<DeclaredGroup> join_ties(std::vector<DeclaredTie> ties, std::size_t table_size) {
  std::vector<std::size_t> lead(table_size);
  std::iota(lead.begin(), lead.end(), std::size_t{0});
  const auto find_lead = [&lead](std::size_t member) {
    while (lead[member] != member) {
      member = lead[member];
    }
    return member;
  };
  for (const DeclaredTie& tie : ties) {
    const auto [low, high] = std::minmax({find_lead(tie.first), find_lead(tie.second)});
    lead[high] = low;
  }
  std::map<std::size_t, DeclaredGroup> groups;
  for (std::size_t member = 0; member < table_size; ++member) {
    groups[find_lead(member)].members.push_back(member);
  }
  for (DeclaredTie& tie : ties) {
    groups[find_lead(tie.first)].ties.push_back(std::move(tie));
  }
  std::vector<DeclaredGroup> joined;
  for (auto& [first, group] : groups) {
    if (group.members.size() > 1) {
      joined.push_back(std::move(group));
    }
  }
  return joined;
}

} // namespace tieshard

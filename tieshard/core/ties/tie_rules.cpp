#include "tieshard/core/ties/tie_rules.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tieshard/core/families/family.h"
#include "tieshard/core/families/stored_ties.h"
#include "tieshard/core/ties/explicit_ties.h"
#include "tieshard/core/ties/stored_copies.h"

namespace tieshard {
namespace {

/// Positions of the names of a table.
class NameIndex {
 public:
  explicit NameIndex(const ParameterTable& table) {
    positions_.reserve(table.size());
    for (std::size_t i = 0; i < table.size(); ++i) {
      positions_.emplace(table[i].fqn, i);
    }
  }

  std::optional<std::size_t> find(std::string_view fqn) const {
    const auto found = positions_.find(fqn);
    return found == positions_.end() ? std::nullopt : std::optional<std::size_t>(found->second);
  }

 private:
  std::unordered_map<std::string_view, std::size_t> positions_;
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

/// Whether two embeddings of an encoder and a decoder are one weight, the architecture not being known. Where the flag
/// says untied, only equal copies of a module that is called shared show that it is about the head alone, as T5's.
bool share_embedding(const Checkpoint& checkpoint, const FamilyTie& tie) {
  const auto& flag = checkpoint.config().tie_word_embeddings();
  if (!flag || flag->value) {
    return true;
  }
  const bool is_shared = tie.canonical == "shared.weight" || tie.canonical.ends_with(".shared.weight");
  return is_shared && !first_difference(checkpoint, *checkpoint.find(tie.canonical), *checkpoint.find(tie.alias));
}

/// Without a family's table the names are all there is: they show the embeddings that an encoder and a decoder share,
/// and, where the flag says tied, the head.
void add_ties_of_stored(const Checkpoint& checkpoint,
                        const NameIndex& names,
                        std::vector<DeclaredTie>& ties,
                        std::vector<Diagnostic>& findings) {
  const auto& flag = checkpoint.config().tie_word_embeddings();
  const bool says_tied = flag && flag->value;
  std::string by_names;
  for (const FamilyTie& tie : ties_of_stored(checkpoint)) {
    const auto canonical = names.find(tie.canonical);
    const auto alias = names.find(tie.alias);
    if (!canonical || !alias || (tie.always && !share_embedding(checkpoint, tie))) {
      continue;
    }
    const TieEvidence evidence = says_tied ? TieEvidence::kConfigFlag : TieEvidence::kFamilyRule;
    ties.push_back(ordered(*canonical,
                           *alias,
                           {evidence, concat(flag_text(flag), "; by their names, ", arrow(tie.alias, tie.canonical))}));
    if (says_tied && flag->is_nested()) {
      findings.push_back(nested_flag(checkpoint.config(), tie.canonical, tie.alias));
    }
    by_names += concat(by_names.empty() ? "" : ", ", tie.alias, " and ", tie.canonical);
  }
  if (!by_names.empty() && !says_tied) {
    findings.push_back({.level = Level::kNote,
                        .code = Code::kTieFlagDefault,
                        .what = "an encoder and a decoder share their embedding by its names alone",
                        .where = concat(checkpoint.config().where(), ", ", by_names),
                        .why = concat(flag_text(flag), ", and the architecture is not known"),
                        .fix = "pass --untie for a name that has a weight of its own"});
  }
}

void add_family_ties(const Checkpoint& checkpoint,
                     const NameIndex& names,
                     std::vector<DeclaredTie>& ties,
                     std::vector<Diagnostic>& findings) {
  const HfConfig& config = checkpoint.config();
  const Family* const family = find_family(config);
  if (family == nullptr) {
    add_ties_of_stored(checkpoint, names, ties, findings);
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

/// From the names in file metadata, which no renaming has touched, to the model's.
class MetadataNames {
 public:
  MetadataNames(const Checkpoint& checkpoint, const NameIndex& names) : names_(names) {
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      if (tensor.name != tensor.stored_name) {
        renamed_.emplace(tensor.stored_name, tensor.name);
      }
    }
  }

  std::string kept(const std::string& stored_name) const {
    const auto found = renamed_.find(stored_name);
    return found == renamed_.end() ? stored_name : std::string(found->second);
  }

  /// `dropped` is in no file, so what was done to the name that was kept in its place is done to it.
  std::string dropped(const std::string& dropped, const std::string& kept) const {
    const auto found = renamed_.find(kept);
    if (found == renamed_.end() || names_.find(dropped)) {
      return dropped;
    }
    std::string_view from = found->first;
    std::string_view to = found->second;
    while (!from.empty() && !to.empty() && from.back() == to.back()) {
      from.remove_suffix(1);
      to.remove_suffix(1);
    }
    return dropped.starts_with(from) ? concat(to, dropped.substr(from.size())) : dropped;
  }

 private:
  const NameIndex& names_;
  std::unordered_map<std::string_view, std::string_view> renamed_;
};

/// What is said of a record that ties nothing: level note where the model does without it.
Diagnostic unusable_record(const std::string& where, const std::string& why, Level level) {
  return {.level = level,
          .code = Code::kTieFromMetadata,
          .what = "a tie that file metadata records is not used",
          .where = where,
          .why = why,
          .fix = "nothing, if the two are not one weight; else store it under a name of the model, or pass --tie"};
}

/// Why a record cannot be a tie; empty when it can. A name that is called dropped but that is stored was not dropped:
/// the record is stale.
std::string unusable(const Checkpoint& checkpoint,
                     const ParameterTable& table,
                     std::pair<const std::string&, std::optional<std::size_t>> dropped,
                     std::pair<const std::string&, std::optional<std::size_t>> kept) {
  if (checkpoint.find(dropped.first) != nullptr) {
    return concat(dropped.first, " is called dropped, but it is stored: its own values count");
  }
  for (const auto& [name, position] : {dropped, kept}) {
    if (!position) {
      return concat("no parameter is called ", name);
    }
  }
  if (dropped.second == kept.second) {
    return concat(dropped.first, " is said to be itself");
  }
  const Shape& first = table[*dropped.second].shape;
  const Shape& second = table[*kept.second].shape;
  return first == second ? std::string()
                         : concat("the two have different shapes, ", to_string(first), " and ", to_string(second));
}

void add_metadata_ties(const Checkpoint& checkpoint,
                       const ParameterTable& table,
                       const NameIndex& names,
                       std::vector<DeclaredTie>& ties,
                       std::vector<Diagnostic>& findings) {
  std::set<std::pair<std::size_t, std::size_t>> declared;
  for (const DeclaredTie& tie : ties) {
    declared.emplace(tie.first, tie.second);
  }
  const MetadataNames model_names(checkpoint, names);
  for (const SafetensorsFile& file : checkpoint.files()) {
    const std::string file_name = file.file().path().filename().string();
    for (const auto& [dropped, kept] : file.header().metadata) {
      const std::string dropped_name = model_names.dropped(dropped, kept);
      const std::string kept_name = model_names.kept(kept);
      const auto alias = names.find(dropped_name);
      const auto canonical = names.find(kept_name);
      const bool is_stored = checkpoint.find(dropped_name) != nullptr;
      if (!alias && !canonical && !is_stored && checkpoint.find(kept_name) == nullptr) {
        continue; // no record of a tie
      }
      if (const std::string why = unusable(checkpoint, table, {dropped_name, alias}, {kept_name, canonical});
          !why.empty()) {
        findings.push_back(unusable_record(concat(file_name, ", ", dropped, " and ", kept),
                                           why,
                                           is_stored || !alias ? Level::kNote : Level::kWarning));
        continue;
      }
      DeclaredTie tie =
          ordered(*alias,
                  *canonical,
                  {TieEvidence::kFileMetadata, concat(file_name, ": __metadata__ records ", arrow(dropped, kept))});
      if (!declared.contains({tie.first, tie.second})) {
        findings.push_back(
            {.level = Level::kWarning,
             .code = Code::kTieFromMetadata,
             .what = "a tie is recorded in file metadata only",
             .where = concat(file_name, ", ", dropped, " and ", kept),
             .why = concat(dropped,
                           " is not stored, and neither the module nor config.json ties it; __metadata__ "
                           "says that it is ",
                           kept),
             .fix = "set tie_word_embeddings to true in config.json if the two are one weight"});
      }
      ties.push_back(std::move(tie));
    }
  }
}

void add_explicit_ties(const std::map<std::string, std::string>& explicit_ties,
                       const ParameterTable& table,
                       const NameIndex& names,
                       std::vector<DeclaredTie>& ties) {
  ends_of_chains(explicit_ties, table); // refuses unknown names and cycles
  for (const auto& [alias, canonical] : explicit_ties) {
    ties.push_back(ordered(*names.find(alias),
                           *names.find(canonical),
                           {TieEvidence::kExplicitMap,
                            concat("the caller: ", arrow(alias, canonical)),
                            concat("--tie ", alias, "=", canonical)}));
  }
}

} // namespace

std::vector<DeclaredTie> module_ties(const ParameterTable& table) {
  std::vector<DeclaredTie> ties;
  std::unordered_map<std::uint64_t, std::size_t> first_with;
  first_with.reserve(table.size());
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
  add_explicit_ties(explicit_ties, table, names, ties);
  add_metadata_ties(checkpoint, table, names, ties, findings);
  return ties;
}

std::vector<DeclaredGroup> join_ties(std::vector<DeclaredTie> ties, std::size_t table_size) {
  std::vector<std::size_t> lead(table_size);
  std::iota(lead.begin(), lead.end(), std::size_t{0});
  const auto find_lead = [&lead](std::size_t member) {
    while (lead[member] != member) {
      lead[member] = lead[lead[member]]; // halves the way for the next one
      member = lead[member];
    }
    return member;
  };
  for (const DeclaredTie& tie : ties) {
    const auto [low, high] = std::minmax({find_lead(tie.first), find_lead(tie.second)});
    lead[high] = low;
  }
  std::map<std::size_t, DeclaredGroup> groups; // by lead, the first member
  for (DeclaredTie& tie : ties) {
    groups[find_lead(tie.first)].ties.push_back(std::move(tie));
  }
  std::vector<DeclaredGroup> joined;
  for (auto& [lead_member, group] : groups) {
    for (const DeclaredTie& tie : group.ties) {
      group.members.push_back(tie.first);
      group.members.push_back(tie.second);
    }
    std::ranges::sort(group.members);
    group.members.erase(std::unique(group.members.begin(), group.members.end()), group.members.end());
    joined.push_back(std::move(group));
  }
  return joined;
}

} // namespace tieshard

#include "tieshard/core/ties/untie.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>

#include "tieshard/core/ties/explicit_ties.h"

namespace tieshard {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& why, const std::string& fix) {
  throw InputError({.code = Code::kUntied,
                    .what = "a tie cannot be undone",
                    .where = concat("untie ", name),
                    .why = why,
                    .fix = fix});
}

void require_no_explicit_tie(const TieOptions& options, const std::string& name) {
  for (const auto& [alias, canonical] : options.explicit_ties) {
    if (alias == name || canonical == name) {
      refuse(name, concat("the caller ties ", alias, " to ", canonical), "leave one of both out");
    }
  }
}

/// The names that `name` would be tied to, and why.
Diagnostic undone(const ParameterTable& table, const DeclaredGroup* group, std::size_t name) {
  Diagnostic diagnostic{.level = Level::kNote,
                        .code = Code::kUntied,
                        .what = "a declared tie is undone because the caller asked for it",
                        .where = table[name].fqn,
                        .fix = "store a value for it under its own name"};
  if (group == nullptr) {
    diagnostic.what = "a name that the caller wants untied is tied to nothing";
    diagnostic.why = "no declared tie has this name; nothing changes";
    diagnostic.fix = "leave it out";
    return diagnostic;
  }
  for (const DeclaredTie& tie : group->ties) {
    if (tie.first != name && tie.second != name) {
      continue;
    }
    if (tie.reason.evidence == TieEvidence::kModuleIdentity) {
      const std::string& other = table[tie.first == name ? tie.second : tie.first].fqn;
      refuse(table[name].fqn,
             concat("the module has one tensor under this name and ", other),
             "build the module with two tensors");
    }
    diagnostic.why += concat(diagnostic.why.empty() ? "" : "; ", tie.reason.text);
  }
  return diagnostic;
}

} // namespace

UndoneTies untie(const ParameterTable& table,
                 const TieOptions& options,
                 std::vector<DeclaredGroup>& groups,
                 std::vector<Diagnostic>& findings) {
  UndoneTies undone_ties;
  if (options.untied.empty()) {
    return undone_ties;
  }
  std::unordered_map<std::string_view, std::size_t> positions;
  for (std::size_t i = 0; i < table.size(); ++i) {
    positions.emplace(table[i].fqn, i);
  }
  std::unordered_map<std::size_t, const DeclaredGroup*> group_of;
  for (const DeclaredGroup& group : groups) {
    for (const std::size_t member : group.members) {
      group_of.emplace(member, &group);
    }
  }
  std::set<std::size_t> apart;
  for (const std::string& name : options.untied) {
    const auto position = positions.find(name);
    require_parameter(position != positions.end(), name, concat("untie ", name));
    require_no_explicit_tie(options, name);
    if (apart.insert(position->second).second) {
      const auto group = group_of.find(position->second);
      if (group != group_of.end()) {
        for (const std::size_t member : group->second->members) {
          undone_ties.emplace(table[member].fqn, name);
        }
      }
      findings.push_back(undone(table, group == group_of.end() ? nullptr : group->second, position->second));
    }
  }
  for (DeclaredGroup& group : groups) {
    std::erase_if(group.members, [&apart](std::size_t member) { return apart.contains(member); });
  }
  std::erase_if(groups, [](const DeclaredGroup& group) { return group.members.size() < 2; });
  return undone_ties;
}

} // namespace tieshard

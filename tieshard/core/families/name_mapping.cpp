#include "tieshard/core/families/name_mapping.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tieshard/core/families/model_names.h"
#include "tieshard/core/families/name_changes.h"
#include "tieshard/core/families/prefix_rule.h"
#include "tieshard/core/families/wrapper_parts.h"

namespace tieshard {
namespace {

constexpr int kMostRules = 4; ///< of one checkpoint, one of them leading

/// A stored tensor on its way to a name that the model knows.
struct Candidate {
  const StoredTensor* tensor = nullptr;
  UnwrappedName unwrapped; ///< its own name where it has no wrapper parts
  std::string name{};      ///< `unwrapped.name` after the rules so far
  bool by_rule = false;
};

struct Mapper {
  const Checkpoint& checkpoint;
  const Family& family;
  ModelNames model;
  std::vector<const StoredTensor*> exact{}; ///< that the model knows as they are
  std::vector<Candidate> mapped{};
  std::vector<Candidate> unknown{};
  std::vector<PrefixRule> rules{};
};

/// Moves candidates whose name the model knows by now.
void sort_out(Mapper& mapper) {
  const auto known = std::stable_partition(mapper.unknown.begin(), mapper.unknown.end(), [&](const Candidate& each) {
    return !mapper.model.knows(each.name);
  });
  std::move(known, mapper.unknown.end(), std::back_inserter(mapper.mapped));
  mapper.unknown.erase(known, mapper.unknown.end());
}

/// Indices of the parameters that nothing gives a value: neither under their own name nor under one that may be tied.
std::vector<std::size_t> missing_parameters(const Mapper& mapper) {
  const ParameterTable& table = mapper.model.table();
  std::vector<bool> covered(table.size(), false);
  const auto cover = [&](std::string_view name) {
    if (const auto parameter = mapper.model.parameter(name)) {
      covered[*parameter] = true;
    }
  };
  std::ranges::for_each(mapper.exact, [&](const StoredTensor* tensor) { cover(tensor->name); });
  std::ranges::for_each(mapper.mapped, [&](const Candidate& candidate) { cover(candidate.name); });
  const std::vector<FamilyTie> ties = mapper.family.ties(mapper.checkpoint.config());
  for (int pass = 0; pass < 2; ++pass) { // the second for names that are tied through the canonical one
    for (const FamilyTie& tie : ties) {
      const auto canonical = mapper.model.parameter(tie.canonical);
      const auto alias = mapper.model.parameter(tie.alias);
      if (canonical && alias && (covered[*canonical] || covered[*alias])) {
        covered[*canonical] = covered[*alias] = true;
      }
    }
  }
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!covered[i]) {
      missing.push_back(i);
    }
  }
  return missing;
}

std::vector<UnknownName> names_of(const std::vector<Candidate>& candidates) {
  std::vector<UnknownName> names;
  names.reserve(candidates.size());
  for (const Candidate& candidate : candidates) {
    names.push_back({.name = candidate.name, .shape = &candidate.tensor->shape});
  }
  return names;
}

/// A wrapper wraps a module: all that is stored of it carries its part, or two saves have been mixed.
void require_whole_modules(const Mapper& mapper) {
  std::vector<WrappedName> names;
  names.reserve(mapper.exact.size() + mapper.mapped.size());
  for (const StoredTensor* tensor : mapper.exact) {
    names.push_back({.stored = tensor->stored_name, .name = tensor->name});
  }
  for (const Candidate& candidate : mapper.mapped) {
    names.push_back({.stored = candidate.tensor->stored_name,
                     .name = candidate.unwrapped.name,
                     .points = candidate.unwrapped.wrapped});
  }
  if (const auto mixed = partly_wrapped(names); !mixed.empty()) {
    refuse_mixed_names(mapper.checkpoint, mixed.front());
  }
}

/// Whether the inserted parts of `rule` stand in all names of the modules in which they stand at all.
bool is_in_whole_modules(const Mapper& mapper, const PrefixRule& rule) {
  std::vector<std::string> changed;
  changed.reserve(mapper.unknown.size());
  std::vector<WrapPoint> points;
  points.reserve(mapper.unknown.size());
  std::vector<WrappedName> names;
  for (const StoredTensor* tensor : mapper.exact) {
    names.push_back({.stored = tensor->stored_name, .name = tensor->name});
  }
  for (const Candidate& candidate : mapper.mapped) {
    names.push_back({.stored = candidate.tensor->stored_name, .name = candidate.name});
  }
  for (const Candidate& candidate : mapper.unknown) {
    const std::size_t at = candidate.name.find("." + rule.from);
    auto name = rule.apply(candidate.name);
    WrappedName& wrapped =
        names.emplace_back(WrappedName{.stored = candidate.tensor->stored_name,
                                       .name = changed.emplace_back(name ? *std::move(name) : candidate.name)});
    if (at != std::string::npos) {
      points.push_back({.module = candidate.name.substr(0, at + 1), .parts = rule.from});
      wrapped.points = std::span(&points.back(), 1);
    }
  }
  return partly_wrapped(names).empty();
}

/// A leading prefix belongs to all that is stored of a module of the model: no other name may stand beside the new
/// ones.
void require_whole_prefix(const Mapper& mapper, const PrefixRule& rule) {
  const auto module_of = [](std::string_view name) { return name.substr(0, name.find('.')); };
  std::map<std::string_view, const Candidate*> changed;
  for (const Candidate& candidate : mapper.mapped) {
    if (candidate.by_rule) {
      changed.emplace(module_of(candidate.name), &candidate);
    }
  }
  const auto check = [&](const std::string& name, const std::string& stored_name) {
    const auto beside = changed.find(module_of(name));
    if (beside == changed.end() || !name.starts_with(rule.to)) {
      return;
    }
    refuse_mixed_names(mapper.checkpoint,
                       beside->second->tensor->stored_name,
                       stored_name,
                       concat("the first becomes ",
                              beside->second->name,
                              rule.from.empty() ? concat(" with ", rule.to) : concat(" without ", rule.from),
                              ", the second is a name of the model as it is"));
  };
  for (const StoredTensor* tensor : mapper.exact) {
    check(tensor->name, tensor->stored_name);
  }
  for (const Candidate& candidate : mapper.mapped) {
    if (!candidate.by_rule) {
      check(candidate.name, candidate.tensor->stored_name);
    }
  }
}

/// A second set of names for what `rule` has filled.
void require_one_prefix(const Mapper& mapper, const std::vector<std::size_t>& filled, std::size_t least) {
  const auto other = find_prefix_rule(names_of(mapper.unknown), filled, least, mapper.model);
  if (!other || other->anywhere) {
    return;
  }
  const auto found = [](const std::vector<Candidate>& candidates, const auto& is_it) {
    const auto candidate = std::ranges::find_if(candidates, is_it);
    return candidate == candidates.end() ? std::string() : candidate->tensor->stored_name;
  };
  refuse_mixed_names(mapper.checkpoint,
                     found(mapper.mapped, [](const Candidate& candidate) { return candidate.by_rule; }),
                     found(mapper.unknown,
                           [&](const Candidate& candidate) {
                             const auto changed = other->apply(candidate.name);
                             return changed && mapper.model.knows(*changed);
                           }),
                     "two sets of names with different prefixes stand for parameters of one model");
}

void apply(Mapper& mapper, const PrefixRule& rule) {
  for (Candidate& candidate : mapper.unknown) {
    if (auto changed = rule.apply(candidate.name)) {
      candidate.name = *std::move(changed);
      candidate.by_rule |= !rule.anywhere;
    }
  }
  sort_out(mapper);
  mapper.rules.push_back(rule);
}

void find_rules(Mapper& mapper) {
  std::vector<std::size_t> missing = missing_parameters(mapper);
  const PrefixRule* leading = nullptr;
  mapper.rules.reserve(kMostRules);
  while (!missing.empty() && !mapper.unknown.empty() && mapper.rules.size() < kMostRules) {
    const auto rule = find_prefix_rule(names_of(mapper.unknown), missing, missing.size() / 4, mapper.model);
    if (!rule || (rule->anywhere && !is_in_whole_modules(mapper, *rule))) {
      return;
    }
    if (!rule->anywhere && leading != nullptr) {
      require_one_prefix(mapper, missing, 1);
      return;
    }
    apply(mapper, *rule);
    std::vector<std::size_t> still_missing = missing_parameters(mapper);
    if (!rule->anywhere) {
      leading = &mapper.rules.back();
      require_whole_prefix(mapper, *leading);
      std::vector<std::size_t> filled;
      std::ranges::set_difference(missing, still_missing, std::back_inserter(filled));
      require_one_prefix(mapper, filled, filled.size() / 2);
    }
    missing = std::move(still_missing);
  }
}

/// Throws where two tensors would have one name.
void require_distinct(const Mapper& mapper) {
  std::vector<ChangedName> names;
  names.reserve(mapper.exact.size() + mapper.mapped.size());
  for (const StoredTensor* tensor : mapper.exact) {
    names.push_back({.stored = tensor->stored_name, .name = tensor->name});
  }
  for (const Candidate& candidate : mapper.mapped) {
    names.push_back({.stored = candidate.tensor->stored_name, .name = candidate.name});
  }
  require_distinct_names(mapper.checkpoint, names);
}

std::vector<Diagnostic> findings_of(const Mapper& mapper, bool rename) {
  std::vector<Diagnostic> findings;
  std::set<std::string> parts;
  std::vector<ChangedName> wrapped;
  std::vector<ChangedName> by_rule;
  for (const Candidate& candidate : mapper.mapped) {
    const ChangedName changed{.stored = candidate.tensor->stored_name, .name = candidate.name};
    if (!candidate.unwrapped.wrapped.empty()) {
      wrapped.push_back(changed);
    }
    if (candidate.name != candidate.unwrapped.name) {
      by_rule.push_back(changed);
    }
    for (const WrapPoint& point : candidate.unwrapped.wrapped) {
      parts.insert(point.parts);
    }
  }
  if (!wrapped.empty()) {
    findings.push_back(renaming(mapper.checkpoint, Code::kWrapperPrefix, taken_out(parts), wrapped, rename));
  }
  for (const PrefixRule& rule : mapper.rules) {
    const bool is_base =
        !rule.to.empty() || std::ranges::any_of(mapper.model.table(), [&rule](const ParameterInfo& info) {
          return info.fqn.starts_with(rule.from);
        });
    const std::string said = rule.from.empty() ? concat(rule.to, " is put in front")
                             : rule.to.empty() ? concat(rule.from, " is taken out")
                                               : concat(rule.from, " is replaced with ", rule.to);
    findings.push_back(
        renaming(mapper.checkpoint, is_base ? Code::kBaseModelPrefix : Code::kWrapperPrefix, said, by_rule, rename));
  }
  return findings;
}

} // namespace

NameMapping find_name_mapping(const Checkpoint& checkpoint,
                              const ParameterTable& table,
                              const Family& family,
                              const NameMappingOptions& options) {
  Mapper mapper{.checkpoint = checkpoint, .family = family, .model = ModelNames(table, family)};
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (mapper.model.knows(tensor.name)) {
      mapper.exact.push_back(&tensor);
    } else {
      Candidate candidate{.tensor = &tensor, .unwrapped = unwrap(tensor.name, [&](std::string_view part) {
                                               return mapper.model.has_part(part);
                                             })};
      candidate.name = candidate.unwrapped.name;
      mapper.unknown.push_back(std::move(candidate));
    }
  }
  sort_out(mapper);
  find_rules(mapper);
  if (mapper.mapped.empty()) {
    return {};
  }
  require_distinct(mapper);
  require_whole_modules(mapper);
  NameMapping mapping{.names = {}, .findings = findings_of(mapper, options.rename)};
  if (!options.rename) {
    throw InputError(mapping.findings.front());
  }
  std::ranges::sort(
      mapper.mapped, {}, [](const Candidate& each) { return std::string_view(each.tensor->stored_name); });
  for (Candidate& candidate : mapper.mapped) {
    mapping.names.emplace_hint(mapping.names.end(), candidate.tensor->stored_name, std::move(candidate.name));
  }
  return mapping;
}

} // namespace tieshard

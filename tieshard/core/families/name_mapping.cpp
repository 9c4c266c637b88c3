#include "tieshard/core/families/name_mapping.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tieshard/core/families/model_names.h"
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

[[noreturn]] void refuse_mixture(const Checkpoint& checkpoint,
                                 const std::string& first,
                                 const std::string& second,
                                 const std::string& why) {
  throw InputError({.code = Code::kMixedPrefixes,
                    .what = "stored names carry prefixes that contradict each other",
                    .where = concat(checkpoint.directory().string(), ": ", first, " and ", second),
                    .why = why,
                    .fix = "save the model again in one piece, or rename or delete one set of the tensors"});
}

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

/// Where a wrapper stood in one of the names but not in all that are stored of that module.
struct PartlyWrapped {
  WrapPoint point;
  std::string with;
  std::string without;
};

/// Pre: `wrapped` and `names` live as long as the call; `names` are all that count, in the form without wrapper parts.
std::optional<PartlyWrapped> partly_wrapped(const std::vector<std::pair<std::string_view, const WrapPoint*>>& wrapped,
                                            const std::vector<std::string_view>& names) {
  struct Uses {
    const WrapPoint* point = nullptr;
    std::string_view example;
    std::size_t wrapped = 0;
    std::size_t in_all = 0;
  };
  std::unordered_map<std::string_view, Uses> uses;
  for (const auto& [name, point] : wrapped) {
    Uses& use = uses[point->module];
    if (use.point != nullptr && use.point->parts != point->parts) {
      return PartlyWrapped{.point = *use.point, .with = std::string(use.example), .without = std::string(name)};
    }
    use = {.point = point, .example = name, .wrapped = use.wrapped + 1, .in_all = 0};
  }
  const auto each_module = [&uses](std::string_view name, const auto& action) {
    for (std::size_t length = 0; length != std::string_view::npos;) {
      if (const auto use = uses.find(name.substr(0, length)); use != uses.end()) {
        action(use->second);
      }
      const std::size_t dot = name.find('.', length);
      length = dot == std::string_view::npos ? dot : dot + 1;
    }
  };
  for (const std::string_view name : names) {
    each_module(name, [](Uses& use) { ++use.in_all; });
  }
  for (const auto& [module, use] : uses) {
    if (use.wrapped == use.in_all) {
      continue;
    }
    std::set<std::string_view> with;
    for (const auto& [name, point] : wrapped) {
      if (point->module == module) {
        with.insert(name);
      }
    }
    const std::string_view found = module;
    const auto without = std::ranges::find_if(
        names, [&](std::string_view name) { return name.starts_with(found) && !with.contains(name); });
    return PartlyWrapped{.point = *use.point,
                         .with = std::string(use.example),
                         .without = without == names.end() ? std::string() : std::string(*without)};
  }
  return std::nullopt;
}

/// A wrapper wraps a module: all that is stored of it carries its part, or two saves have been mixed.
void require_whole_modules(const Mapper& mapper) {
  std::vector<std::pair<std::string_view, const WrapPoint*>> wrapped;
  std::vector<std::string_view> names;
  for (const StoredTensor* tensor : mapper.exact) {
    names.push_back(tensor->name);
  }
  for (const Candidate& candidate : mapper.mapped) {
    names.push_back(candidate.unwrapped.name);
    for (const WrapPoint& point : candidate.unwrapped.wrapped) {
      wrapped.emplace_back(candidate.unwrapped.name, &point);
    }
  }
  if (const auto mixed = wrapped.empty() ? std::nullopt : partly_wrapped(wrapped, names)) {
    refuse_mixture(mapper.checkpoint,
                   mixed->with,
                   mixed->without,
                   concat(mixed->point.module.empty() ? "the first" : concat("in ", mixed->point.module, " the first"),
                          " is stored with ",
                          mixed->point.parts,
                          ", the second not"));
  }
}

/// Whether the inserted parts of `rule` stand in all names of the modules in which they stand at all.
bool is_in_whole_modules(const Mapper& mapper, const PrefixRule& rule) {
  std::vector<std::string> changed;
  changed.reserve(mapper.unknown.size());
  std::vector<WrapPoint> points;
  points.reserve(mapper.unknown.size());
  std::vector<std::pair<std::string_view, const WrapPoint*>> wrapped;
  std::vector<std::string_view> names;
  for (const StoredTensor* tensor : mapper.exact) {
    names.push_back(tensor->name);
  }
  for (const Candidate& candidate : mapper.mapped) {
    names.push_back(candidate.name);
  }
  for (const Candidate& candidate : mapper.unknown) {
    const std::size_t at = candidate.name.find("." + rule.from);
    auto name = rule.apply(candidate.name);
    names.push_back(changed.emplace_back(name ? *std::move(name) : candidate.name));
    if (at != std::string::npos) {
      wrapped.emplace_back(
          names.back(),
          &points.emplace_back(WrapPoint{.module = candidate.name.substr(0, at + 1), .parts = rule.from}));
    }
  }
  return !partly_wrapped(wrapped, names);
}

/// A leading prefix belongs to all that is stored of a module of the model: no other name may stand beside the new
/// ones.
void require_whole_prefix(const Mapper& mapper, const PrefixRule& rule) {
  const auto module_of = [&rule](std::string_view name) { return name.substr(0, name.find('.')); };
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
    refuse_mixture(mapper.checkpoint,
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
  refuse_mixture(mapper.checkpoint,
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
  std::unordered_map<std::string_view, const StoredTensor*> taken;
  const auto take = [&](std::string_view name, const StoredTensor* tensor) {
    const auto [other, added] = taken.emplace(name, tensor);
    if (!added) {
      refuse_mixture(mapper.checkpoint,
                     tensor->stored_name,
                     other->second->stored_name,
                     concat("both would be ", name, ", and which of them is right cannot be told"));
    }
  };
  std::ranges::for_each(mapper.exact, [&](const StoredTensor* tensor) { take(tensor->name, tensor); });
  std::ranges::for_each(mapper.mapped, [&](const Candidate& candidate) { take(candidate.name, candidate.tensor); });
}

/// The finding for all tensors that one kind of change concerns; `said` says what is done to their names.
Diagnostic renaming(const Mapper& mapper,
                    Code code,
                    const std::string& said,
                    const std::vector<const Candidate*>& concerned,
                    bool rename) {
  const Candidate& example = *concerned.front();
  Diagnostic diagnostic{
      .level = rename ? Level::kWarning : Level::kError,
      .code = code,
      .what = std::string(code == Code::kWrapperPrefix ? "stored names carry a wrapper's prefix"
                                                       : "stored names lack or add the base model's prefix"),
      .where = concat(mapper.checkpoint.directory().string(), ": ", example.tensor->stored_name),
      .why = concat(said,
                    ", so that ",
                    concerned.size(),
                    concerned.size() == 1 ? " tensor has" : " tensors have",
                    " names of the model: ",
                    example.tensor->stored_name,
                    " -> ",
                    example.name),
      .fix = "nothing has to be done; an export writes the model's names"};
  if (!rename) {
    diagnostic.why = concat("renaming is switched off; ", diagnostic.why);
    diagnostic.fix = "leave --no-rename out, or rename the tensors in the files";
  }
  return diagnostic;
}

std::vector<Diagnostic> findings_of(const Mapper& mapper, bool rename) {
  std::vector<Diagnostic> findings;
  std::set<std::string> parts;
  std::vector<const Candidate*> wrapped;
  std::vector<const Candidate*> by_rule;
  for (const Candidate& candidate : mapper.mapped) {
    if (!candidate.unwrapped.wrapped.empty()) {
      wrapped.push_back(&candidate);
    }
    if (candidate.name != candidate.unwrapped.name) {
      by_rule.push_back(&candidate);
    }
    for (const WrapPoint& point : candidate.unwrapped.wrapped) {
      parts.insert(point.parts);
    }
  }
  if (!wrapped.empty()) {
    std::string all;
    for (const std::string& part : parts) {
      all += concat(all.empty() ? "" : ", ", part);
    }
    findings.push_back(renaming(mapper, Code::kWrapperPrefix, concat(all, " is taken out"), wrapped, rename));
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
        renaming(mapper, is_base ? Code::kBaseModelPrefix : Code::kWrapperPrefix, said, by_rule, rename));
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
      Candidate candidate{.tensor = &tensor, .unwrapped = unwrap(tensor.name, mapper.model)};
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

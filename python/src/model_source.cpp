#include "python/src/model_source.h"

#include <algorithm>
#include <iterator>

#include "tieshard/core/families/name_mapping.h"

namespace tieshard::python {
namespace {

void append(std::vector<Diagnostic>& all, const std::vector<Diagnostic>& more) {
  std::ranges::copy(more, std::back_inserter(all));
}

Checkpoint open_renamed(const std::filesystem::path& directory,
                        const ParameterTable& table,
                        const ModelSourceOptions& options,
                        std::vector<Diagnostic>& findings) {
  Checkpoint checkpoint = Checkpoint::open(directory).renamed(options.names);
  append(findings, checkpoint.findings());
  const ModuleFamily family(options, TieRegistry::of(table));
  const NameMapping mapping = find_name_mapping(checkpoint, table, family, {.rename = options.rename});
  append(findings, mapping.findings);
  return mapping.names.empty() ? std::move(checkpoint) : std::move(checkpoint).renamed(mapping.names);
}

/// What the class declares counts as said by the caller; where only one of both names is a parameter, as not at all.
TieOptions with_declared(const ParameterTable& table, const ModelSourceOptions& options) {
  TieOptions ties = options.ties;
  const TieRegistry module = TieRegistry::of(table);
  const auto is_parameter = [&](const std::string& name) {
    return std::ranges::any_of(table, [&](const ParameterInfo& info) { return info.fqn == name; });
  };
  for (const auto& [alias, canonical] : options.declared) {
    const bool untied = std::ranges::find(ties.untied, alias) != ties.untied.end();
    const bool tied = module.canonical(alias) == module.canonical(canonical);
    if (!untied && !tied && is_parameter(alias) && is_parameter(canonical)) {
      ties.explicit_ties.emplace(alias, canonical);
    }
  }
  return ties;
}

std::vector<NamedInit> inits_from(const std::map<std::string, std::string>& rules) {
  std::vector<NamedInit> inits;
  for (const auto& [name, rule] : rules) {
    inits.push_back({.fqn = name, .rule = InitRule::parse(rule)});
  }
  return inits;
}

} // namespace

ModuleFamily::ModuleFamily(const ModelSourceOptions& options, const TieRegistry& ties) {
  for (const TieGroup& group : ties.groups()) {
    for (const TieAlias& alias : group.aliases) {
      ties_.push_back({.canonical = group.canonical, .alias = alias.name, .always = true});
    }
  }
  for (const auto& [alias, canonical] : options.declared) {
    ties_.push_back({.canonical = canonical, .alias = alias, .always = true});
  }
}

ModelSource::ModelSource(const std::filesystem::path& directory,
                         const ParameterTable& table,
                         const ModelSourceOptions& options)
    : checkpoint_(open_renamed(directory, table, options, findings_)) {
  const TieRegistry ties = TieRegistry::of(checkpoint_, table, with_declared(table, options));
  append(findings_, ties.findings());
  plan_ = ShardPlan::build(table, ties, 1);
  sources_ = find_weight_sources(checkpoint_, plan_, {.inits = inits_from(options.inits)});
  append(findings_, sources_.findings);
}

std::size_t ModelSource::index_of(const std::string& name) const {
  const ShardedParameter* const parameter = plan_.find(name);
  if (parameter == nullptr) {
    throw UsageError({.code = Code::kUnknownParameter,
                      .what = "a part is asked of a name that no parameter has",
                      .where = name,
                      .why = concat("none of the ", plan_.parameters().size(), " parameters has this name"),
                      .fix = "ask for the names of the table that the source was made with"});
  }
  return static_cast<std::size_t>(parameter - plan_.parameters().data());
}

} // namespace tieshard::python

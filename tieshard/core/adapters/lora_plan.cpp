#include "tieshard/core/adapters/lora_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string last_part(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

bool is_embedding_name(const std::string& module) {
  constexpr std::array kNames{"embed_tokens",
                              "wte",
                              "wpe",
                              "shared",
                              "word_embeddings",
                              "position_embeddings",
                              "token_type_embeddings",
                              "relative_attention_bias",
                              "embed_positions",
                              "embed"};
  return std::ranges::find(kNames, last_part(module)) != kNames.end();
}

bool is_head_name(const std::string& module) {
  return last_part(module) == "lm_head" || last_part(module) == "embed_out";
}

/// The parts of `names` as one line; the first few of many.
std::string some_of(const std::set<std::string>& names) {
  constexpr std::size_t kMost = 12;
  std::string text;
  std::size_t shown = 0;
  for (const std::string& name : names) {
    if (++shown > kMost) {
      return concat(text, ", ... (", names.size(), ")");
    }
    text += concat(text.empty() ? "" : ", ", name);
  }
  return text;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += concat(text.empty() ? "" : ", ", name);
  }
  return text;
}

/// @param patterns  all that no module matches, with commas between them
[[noreturn]] void refuse_unknown(const std::string& patterns,
                                 const std::string& field,
                                 const std::string& reason,
                                 const std::set<std::string>& there) {
  throw InputError({.code = Code::kUnknownTarget,
                    .what = "an adapter is asked for modules that the model does not have",
                    .where = concat(field, ", ", patterns),
                    .why = concat(reason, "; there are ", some_of(there)),
                    .fix = "name modules by the end of their dotted names, by a regular expression for whole names, or "
                           "all-linear; an adapter that was made for another model does not fit this one"});
}

/// The value of the one pattern that matches the end of `module`, else `fallback`.
template <typename Value>
Value value_for(const std::map<std::string, Value>& patterns,
                const std::string& module,
                const std::string& field,
                Value fallback) {
  std::optional<Value> found;
  for (const auto& [pattern, value] : patterns) {
    if (!matches_whole(concat("(.*\\.)?(", pattern, ")"), module)) {
      continue;
    }
    if (found && *found != value) { // PEFT takes the first in the file's order, which JSON does not promise
      throw InputError({.code = Code::kAdapterConfig,
                        .what = "a field of an adapter's configuration cannot be honoured",
                        .where = field,
                        .why = concat("several patterns match ", module, " and say different numbers"),
                        .fix = "write patterns of which one matches each module"});
    }
    found = value;
  }
  return found.value_or(fallback);
}

bool is_in_layers(const LoraConfig& config, const std::string& module) {
  if (config.layers_to_transform.empty()) {
    return true;
  }
  const auto listed = [&](long index) {
    return std::ranges::find(config.layers_to_transform, index) != config.layers_to_transform.end();
  };
  if (config.layers_pattern.empty()) {
    return listed(layer_index(module, ""));
  }
  return std::ranges::any_of(config.layers_pattern,
                             [&](const std::string& container) { return listed(layer_index(module, container)); });
}

/// PEFT adapts nothing inside a module that is trained whole.
bool is_inside_saved(const LoraConfig& config, const std::string& module) {
  return std::ranges::any_of(config.modules_to_save, [&module](const std::string& saved) {
    return concat(".", module, ".").find(concat(".", saved, ".")) != std::string::npos;
  });
}

/// Before anything narrows the choice.
bool is_named(const LoraConfig& config, const AdaptableModule& module) {
  return config.targets.all_linear ? !module.embedding && !module.output_head : matches(config.targets, module.name);
}

/// The modules of `named` that no setting takes out again. Without any: the setting that took the last one.
std::vector<const AdaptableModule*> narrowed(const LoraConfig& config,
                                             const std::vector<const AdaptableModule*>& named,
                                             const std::string& targets) {
  const std::pair<const char*, std::function<bool(const std::string&)>> settings[] = {
      {"modules_to_save (such a module is trained whole)",
       [&](const std::string& module) { return !is_inside_saved(config, module); }},
      {"exclude_modules", [&](const std::string& module) { return !matches(config.excluded, module); }},
      {"layers_to_transform and layers_pattern",
       [&](const std::string& module) { return config.targets.all_linear || is_in_layers(config, module); }}};
  std::vector<const AdaptableModule*> left = named;
  for (const auto& [setting, keeps] : settings) {
    std::erase_if(left, [&keeps = keeps](const AdaptableModule* module) { return !keeps(module->name); });
    if (left.empty()) {
      throw InputError({.code = Code::kUnknownTarget,
                        .what = "an adapter has no module left to go on",
                        .where = concat("target_modules, ", targets),
                        .why = concat("expected some of the ",
                                      named.size(),
                                      " modules that match (",
                                      named.front()->name,
                                      ", ...), got none: ",
                                      setting,
                                      " takes the last of them out"),
                        .fix = "name other targets, or let that setting leave some of them"});
    }
  }
  return left;
}

/// The entries of `names` that end the name of no module.
std::vector<std::string> unmatched(const std::vector<std::string>& names, const std::vector<AdaptableModule>& modules) {
  std::vector<std::string> listed = names;
  std::erase_if(listed, [&](const std::string& name) {
    return std::ranges::any_of(modules, [&](const auto& module) { return ends_with_name(module.name, name); });
  });
  return listed;
}

void require_layers(const LoraConfig& config, const std::vector<const AdaptableModule*>& named) {
  std::string absent;
  for (const std::int64_t layer : config.layers_to_transform) {
    LoraConfig alone = config;
    alone.layers_to_transform = {layer};
    if (std::ranges::none_of(named, [&](const AdaptableModule* module) { return is_in_layers(alone, module->name); })) {
      absent += concat(absent.empty() ? "" : ", ", layer);
    }
  }
  if (!absent.empty()) {
    throw InputError({.code = Code::kUnknownTarget,
                      .what = "an adapter is asked for layers that the model does not have",
                      .where = concat("layers_to_transform, ", absent),
                      .why = concat("no target lies in such a layer; the last target is ", named.back()->name),
                      .fix = "count layers from 0, as the names of their modules do"});
  }
}

/// The modules that get an adapter, in their order.
std::vector<const AdaptableModule*> choose_targets(const LoraConfig& config,
                                                   const std::vector<AdaptableModule>& modules) {
  std::set<std::string> there;
  std::vector<const AdaptableModule*> named;
  for (const AdaptableModule& module : modules) {
    there.insert(last_part(module.name));
    if (is_named(config, module)) {
      named.push_back(&module);
    }
  }
  const std::string targets = config.targets.all_linear       ? "all-linear"
                              : !config.targets.regex.empty() ? config.targets.regex
                                                              : joined(config.targets.names);
  const char* const no_end = "no name of a module ends so";
  if (config.every_name_matches) {
    for (const auto& [field, names] :
         {std::pair{"target_modules", config.targets.names}, {"exclude_modules", config.excluded.names}}) {
      if (const std::string absent = joined(unmatched(names, modules)); !absent.empty()) {
        refuse_unknown(absent, field, no_end, there);
      }
    }
  }
  if (named.empty()) {
    refuse_unknown(targets,
                   "target_modules",
                   config.targets.regex.empty() ? no_end : "no name of a module is matched as a whole",
                   there);
  }
  if (config.every_name_matches) {
    require_layers(config, named);
  }
  return narrowed(config, named, targets);
}

constexpr const char* kFixTarget =
    "say --lora-tied both for one adapter on all uses of the weight, or --lora-tied named for this use alone (as PEFT "
    "does without ensure_weight_tying; that cannot be merged); or leave the module out";
constexpr const char* kFixSaved =
    "say --lora-tied both to train the one weight for all its uses and save it under all its names; or untie the base "
    "first, with a copy of the weight under each name";

[[noreturn]] void refuse_tied(const std::string& module,
                              const std::string& weight,
                              const TieRegistry& ties,
                              const char* fix) {
  std::string names = weight;
  for (const std::string& alias : ties.aliases(weight)) {
    names += concat(" and ", alias);
  }
  throw InputError({.code = Code::kTiedTarget,
                    .what = "an adapter is asked for a weight that has several names",
                    .where = module,
                    .why = concat(names, " are one weight: an adapter for one of its uses would part them"),
                    .fix = fix});
}

LoraTarget make_target(const LoraConfig& config, const AdaptableModule& module, const TieRegistry& ties) {
  const std::int64_t rank = value_for(config.rank_pattern, module.name, "rank_pattern", config.rank);
  const double alpha = value_for(config.alpha_pattern, module.name, "alpha_pattern", config.alpha);
  const auto ranks = static_cast<double>(rank);
  LoraTarget target{.module = module.name,
                    .weight = ties.canonical(module.name + std::string(kWeight)),
                    .embedding = module.embedding,
                    .in = module.in,
                    .out = module.out,
                    .rank = rank,
                    .scaling = alpha / (config.rslora ? std::sqrt(ranks) : ranks)};
  target.tied = !ties.aliases(target.weight).empty();
  return target;
}

/// One adapter has one rank and one scaling.
void require_equal_scaling(const LoraTarget& first, const LoraTarget& other) {
  if (first.rank != other.rank || first.scaling != other.scaling) {
    throw InputError(
        {.code = Code::kAdapterConfig,
         .what = "a field of an adapter's configuration cannot be honoured",
         .where = concat("rank_pattern and alpha_pattern, ", first.module, " and ", other.module),
         .why = concat("expected one rank and one scaling for the uses of one weight, got rank ",
                       first.rank,
                       " and scaling ",
                       first.scaling,
                       " beside rank ",
                       other.rank,
                       " and scaling ",
                       other.scaling),
         .fix =
             "write patterns that match both modules or neither; or use this adapter with PEFT, which scales the two "
             "uses apart"});
  }
}

/// One adapter for all modules that use `weight`: the embedding's, where one of them is one.
LoraTarget make_shared_target(const LoraConfig& config,
                              const std::string& weight,
                              const std::vector<AdaptableModule>& modules,
                              const TieRegistry& ties) {
  std::vector<const AdaptableModule*> users;
  for (const AdaptableModule& module : modules) {
    if (ties.canonical(module.name + std::string(kWeight)) == weight) {
      users.push_back(&module);
    }
  }
  std::ranges::stable_partition(users, [](const AdaptableModule* user) { return user->embedding; });
  LoraTarget target = make_target(config, *users.front(), ties);
  for (auto user = users.begin() + 1; user != users.end(); ++user) {
    require_equal_scaling(target, make_target(config, **user, ties));
    target.uses.push_back({.module = (*user)->name, .transposed = (*user)->embedding != target.embedding});
  }
  return target;
}

bool is_saved(const std::string& fqn, const std::string& entry) {
  for (std::size_t dot = fqn.find('.'); dot != std::string::npos; dot = fqn.find('.', dot + 1)) {
    if (std::string_view(fqn).substr(0, dot).ends_with(entry)) { // "norm" means input_layernorm too, as in PEFT
      return true;
    }
  }
  return false;
}

std::vector<SavedParameter> saved_parameters(const LoraConfig& config,
                                             const ParameterTable& table,
                                             const TieRegistry& ties) {
  std::vector<SavedParameter> saved;
  std::set<std::string> seen;
  std::set<std::string> there;
  std::vector<std::string> absent = config.modules_to_save;
  for (const ParameterInfo& info : table) {
    there.insert(last_part(info.fqn.substr(0, info.fqn.rfind('.'))));
    bool wanted = false;
    for (const std::string& entry : config.modules_to_save) {
      if (is_saved(info.fqn, entry)) {
        wanted = true;
        std::erase(absent, entry);
      }
    }
    const std::string weight = ties.canonical(info.fqn);
    if (!wanted || !seen.insert(weight).second) {
      continue;
    }
    SavedParameter parameter{.fqn = weight, .shape = info.shape, .names = {weight}};
    for (const std::string& alias : ties.aliases(weight)) {
      parameter.names.push_back(alias);
    }
    if (parameter.names.size() > 1 && config.tied != TiedTarget::kBoth) {
      refuse_tied(concat("modules_to_save, ", info.fqn), weight, ties, kFixSaved);
    }
    saved.push_back(std::move(parameter));
  }
  if (!absent.empty()) {
    refuse_unknown(joined(absent), "modules_to_save", "no name of a module ends so", there);
  }
  return saved;
}

} // namespace

std::string lora_name(const std::string& module, bool embedding, char which) {
  return embedding ? concat(module, ".lora_embedding_", which) : concat(module, ".lora_", which, ".weight");
}

std::string LoraTarget::a() const {
  return lora_name(module, embedding, 'A');
}

std::string LoraTarget::b() const {
  return lora_name(module, embedding, 'B');
}

namespace {

/// Modules of a mixture that are none in transformers, so that PEFT would leave an adapter on them out, or put it
/// elsewhere: GPT-OSS's router is a bare parameter there, and the experts of Qwen2-MoE and Qwen3-MoE are one tensor,
/// for whose sake PEFT converts every target of an MLP's name, the shared expert's too.
bool is_lost_in_peft(const std::string& module, const std::optional<DecoderConfig>& decoder) {
  if (!decoder || !decoder->experts) {
    return false;
  }
  switch (decoder->experts->layout) {
    case ExpertLayout::kStackedInterleaved:
      return module.ends_with(".mlp.router");
    case ExpertLayout::kMlpExperts:
      return module.find(".mlp.") != std::string::npos;
    case ExpertLayout::kBlockSparseMoe:
      return false;
  }
  return false;
}

} // namespace

std::vector<AdaptableModule> adaptable_modules(const ResolvedModel& model) {
  std::set<std::string> embeddings;
  if (model.family != nullptr) {
    for (const FamilyTie& tie : model.family->ties(model.checkpoint.config())) {
      embeddings.insert(tie.canonical);
    }
  }
  const std::optional<DecoderConfig> decoder =
      model.family == nullptr ? std::nullopt : model.family->decoder(model.checkpoint.config());
  std::vector<AdaptableModule> modules;
  for (const ParameterInfo& info : model.table) {
    if (info.shape.size() != 2 || !info.fqn.ends_with(kWeight)) {
      continue;
    }
    AdaptableModule module{.name = info.fqn.substr(0, info.fqn.size() - kWeight.size())};
    if (is_lost_in_peft(module.name, decoder)) {
      continue;
    }
    module.output_head = is_head_name(module.name);
    module.embedding = !module.output_head && (embeddings.contains(info.fqn) || is_embedding_name(module.name));
    module.in = info.shape[module.embedding ? 0 : 1];
    module.out = info.shape[module.embedding ? 1 : 0];
    modules.push_back(std::move(module));
  }
  return modules;
}

LoraPlan plan_lora(const LoraConfig& config,
                   const std::vector<AdaptableModule>& modules,
                   const ParameterTable& table,
                   const TieRegistry& ties) {
  LoraPlan plan{.config = config};
  std::set<std::string> shared;
  for (const AdaptableModule* module : choose_targets(config, modules)) {
    LoraTarget target = make_target(config, *module, ties);
    if (target.tied && config.tied == TiedTarget::kRefuse) {
      refuse_tied(module->name, target.weight, ties, kFixTarget);
    }
    if (target.tied && config.tied == TiedTarget::kBoth) {
      if (!shared.insert(target.weight).second) {
        continue;
      }
      target = make_shared_target(config, target.weight, modules, ties);
    }
    plan.targets.push_back(std::move(target));
  }
  plan.saved = saved_parameters(config, table, ties);
  return plan;
}

std::vector<NamedInit> lora_inits(const LoraPlan& plan) {
  std::vector<NamedInit> inits;
  const InitRule zero{.kind = InitRule::Kind::kConstant};
  for (const LoraTarget& target : plan.targets) {
    InitRule rule{.kind = InitRule::Kind::kUniform, .seed = plan.config.seed};
    if (target.embedding) {
      rule = {.kind = InitRule::Kind::kNormal, .a = 0, .b = 1, .seed = plan.config.seed};
    } else if (plan.config.init == LoraInit::kGaussian) {
      rule = {.kind = InitRule::Kind::kNormal,
              .a = 0,
              .b = 1.0 / static_cast<double>(target.rank),
              .seed = plan.config.seed};
    } else { // kaiming_uniform(a = sqrt 5): sqrt(6 / ((1 + 5) * in)) on either side
      rule.b = 1.0 / std::sqrt(static_cast<double>(target.in));
      rule.a = -rule.b;
    }
    inits.push_back({target.a(), target.embedding ? zero : rule});
    inits.push_back({target.b(), target.embedding ? rule : zero});
  }
  return inits;
}

} // namespace tieshard

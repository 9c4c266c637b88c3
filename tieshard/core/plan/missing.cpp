#include "tieshard/core/plan/missing.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tieshard/core/families/family.h"
#include "tieshard/core/plan/unloadable.h"

namespace tieshard {
namespace {

/// The first missing parameter that could be tied to a stored tensor, by the family's rules and where the shapes allow
/// it, as "--tie" takes the two names; empty when there is none.
std::string tie_candidate(const Checkpoint& checkpoint, const std::vector<const ShardedParameter*>& missing) {
  const Family* const family = find_family(checkpoint.config());
  if (family == nullptr) {
    return "";
  }
  std::map<std::string, std::string> partners;
  for (const FamilyTie& tie : family->ties(checkpoint.config())) {
    partners.emplace(tie.alias, tie.canonical);
    partners.emplace(tie.canonical, tie.alias);
  }
  for (const ShardedParameter* parameter : missing) {
    const auto partner = partners.find(parameter->fqn);
    const StoredTensor* const stored = partner == partners.end() ? nullptr : checkpoint.find(partner->second);
    if (stored != nullptr && stored->shape == parameter->shape) {
      return concat(parameter->fqn, "=", stored->name);
    }
  }
  return "";
}

/// Without a family's rule: the only stored tensor of that shape that no parameter claims.
const StoredTensor* only_unclaimed_of_shape(const Checkpoint& checkpoint,
                                            const ShardPlan& plan,
                                            const ShardedParameter& missing) {
  const StoredTensor* found = nullptr;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (tensor.shape == missing.shape && plan.find(tensor.name) == nullptr) {
      if (found != nullptr) {
        return nullptr;
      }
      found = &tensor;
    }
  }
  return found;
}

/// The prefix under which every missing name is stored, e.g. "module."; empty when there is none.
std::string foreign_prefix(const Checkpoint& checkpoint, const std::vector<std::string>& missing) {
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (!tensor.name.ends_with("." + missing.front())) {
      continue;
    }
    const std::string prefix = tensor.name.substr(0, tensor.name.size() - missing.front().size());
    const bool uniform =
        std::ranges::all_of(missing, [&](const std::string& fqn) { return checkpoint.find(prefix + fqn) != nullptr; });
    if (uniform) {
      return prefix;
    }
  }
  return "";
}

/// The prefix without which every missing name is stored, e.g. "model."; empty when there is none.
std::string absent_prefix(const Checkpoint& checkpoint, const std::vector<std::string>& missing) {
  const std::string& first = missing.front();
  for (std::size_t dot = first.find('.'); dot != std::string::npos; dot = first.find('.', dot + 1)) {
    const std::string prefix = first.substr(0, dot + 1);
    const bool uniform = std::ranges::all_of(missing, [&](const std::string& fqn) {
      return fqn.starts_with(prefix) && checkpoint.find(fqn.substr(prefix.size())) != nullptr;
    });
    if (uniform) {
      return prefix;
    }
  }
  return "";
}

/// A name's list and its place in it: "model.layers." and 2 of "model.layers.2.mlp.up_proj.weight".
struct LayerName {
  std::string_view list;
  std::int64_t layer = 0;
};

std::optional<LayerName> layer_name(std::string_view fqn) {
  for (std::size_t dot = fqn.find('.'); dot != std::string_view::npos; dot = fqn.find('.', dot + 1)) {
    std::int64_t layer = 0;
    const char* const begin = fqn.data() + dot + 1;
    const auto [end, error] = std::from_chars(begin, fqn.data() + fqn.size(), layer);
    if (error == std::errc() && end != fqn.data() + fqn.size() && *end == '.' && layer >= 0) {
      return LayerName{fqn.substr(0, dot + 1), layer};
    }
  }
  return std::nullopt;
}

/// Where all missing names are of layers behind the stored ones: what the key of config.json says and what is stored.
std::string more_layers(const Checkpoint& checkpoint, const std::vector<std::string>& missing) {
  const std::optional<LayerName> first = layer_name(missing.front());
  if (!first) {
    return "";
  }
  std::int64_t stored_layers = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (const auto name = layer_name(tensor.name); name && name->list == first->list) {
      stored_layers = std::max(stored_layers, name->layer + 1);
    }
  }
  const bool all_behind = std::ranges::all_of(missing, [&](const std::string& fqn) {
    const auto name = layer_name(fqn);
    return name && name->list == first->list && name->layer >= stored_layers;
  });
  if (stored_layers == 0 || !all_behind) {
    return "";
  }
  for (const std::string_view key : {"num_hidden_layers", "n_layer", "num_decoder_layers", "num_layers"}) {
    if (checkpoint.config().has(key)) {
      return concat("config.json says ",
                    key,
                    " = ",
                    checkpoint.config().integer(key),
                    ", the files hold ",
                    stored_layers,
                    " layers of ",
                    first->list);
    }
  }
  return "";
}

std::string likeliest_fix(const Checkpoint& checkpoint,
                          const ShardPlan& plan,
                          const std::vector<const ShardedParameter*>& missing,
                          const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (const std::string untied = plan.ties().untied_by(name); !untied.empty()) {
      return concat("leave --untie ", untied, " out, or store a value for ", name);
    }
  }
  if (const std::string prefix = foreign_prefix(checkpoint, names); !prefix.empty()) {
    return concat("the stored names begin with \"", prefix, "\": rename them without it, or load that submodule");
  }
  if (const std::string prefix = absent_prefix(checkpoint, names); !prefix.empty()) {
    return concat("the stored names lack \"", prefix, "\": rename them with it");
  }
  if (const std::string layers = more_layers(checkpoint, names); !layers.empty()) {
    return concat(layers, ": correct it, or use a checkpoint that holds all layers");
  }
  if (const std::string both = tie_candidate(checkpoint, missing); !both.empty()) {
    return concat("if ", both, " is one weight, set tie_word_embeddings to true in config.json or pass --tie ", both);
  }
  const StoredTensor* const renamed = only_unclaimed_of_shape(checkpoint, plan, *missing.front());
  if (missing.size() == 1 && renamed != nullptr) {
    return concat("if ", renamed->name, " is this parameter under another name, rename it");
  }
  return "use a checkpoint that holds all parameters of the config, or correct config.json";
}

} // namespace

Diagnostic parameters_missing(const Checkpoint& checkpoint,
                              const ShardPlan& plan,
                              const std::vector<const ShardedParameter*>& missing) {
  std::vector<std::string> names;
  for (const ShardedParameter* parameter : missing) {
    names.push_back(parameter->fqn);
  }
  return {.code = Code::kMissingParameter,
          .what = "a parameter has no value in the checkpoint",
          .where = concat(checkpoint.directory().string(), ": ", list_names(names)),
          .why = concat(names.size(),
                        " of ",
                        plan.parameters().size(),
                        " parameters are stored under none of ",
                        "their names; the checkpoint holds ",
                        checkpoint.tensors().size(),
                        " tensors"),
          .fix = concat(likeliest_fix(checkpoint, plan, missing, names),
                        "; to train it from a random value instead, pass --init ",
                        names.front(),
                        "=normal(0.02)")};
}

} // namespace tieshard

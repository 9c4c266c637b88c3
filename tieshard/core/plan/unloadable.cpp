#include "tieshard/core/plan/unloadable.h"

#include <algorithm>
#include <string_view>

#include "tieshard/core/families/family.h"

namespace tieshard {
namespace {

constexpr std::size_t kMostNamed = 20; ///< a message that lists more is not read

/// The stored tensor that `missing` could be tied to: its partner by the family's rules, where the shapes allow it.
const StoredTensor* tie_candidate(const Checkpoint& checkpoint, const ShardedParameter& missing) {
  const Family* const family = find_family(checkpoint.config());
  if (family == nullptr) {
    return nullptr;
  }
  for (const FamilyTie& tie : family->ties(checkpoint.config())) {
    const std::string_view partner = tie.alias == missing.fqn       ? std::string_view(tie.canonical)
                                     : tie.canonical == missing.fqn ? std::string_view(tie.alias)
                                                                    : std::string_view();
    const StoredTensor* const stored = partner.empty() ? nullptr : checkpoint.find(partner);
    if (stored != nullptr && stored->shape == missing.shape) {
      return stored;
    }
  }
  return nullptr;
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

std::string missing_fix(const Checkpoint& checkpoint,
                        const ShardPlan& plan,
                        const std::vector<const ShardedParameter*>& missing,
                        const std::vector<std::string>& names) {
  if (const std::string prefix = foreign_prefix(checkpoint, names); !prefix.empty()) {
    return concat("the stored names begin with \"", prefix, "\": rename them without it, or load that submodule");
  }
  if (const std::string prefix = absent_prefix(checkpoint, names); !prefix.empty()) {
    return concat("the stored names lack \"", prefix, "\": rename them with it");
  }
  for (const ShardedParameter* parameter : missing) {
    if (const StoredTensor* partner = tie_candidate(checkpoint, *parameter)) {
      const std::string both = concat(parameter->fqn, "=", partner->name);
      return concat("if ", both, " is one weight, set tie_word_embeddings to true in config.json or pass --tie ", both);
    }
  }
  const StoredTensor* const renamed = only_unclaimed_of_shape(checkpoint, plan, *missing.front());
  if (missing.size() == 1 && renamed != nullptr) {
    return concat("if ", renamed->name, " is this parameter under another name, rename it");
  }
  return "use a checkpoint that holds all parameters of the config, or correct config.json";
}

/// Keys of config.json that say one of the sizes that differ, as "vocab_size = 32000".
std::string keys_that_say(const HfConfig& config, const std::vector<ShapeMismatch>& mismatches) {
  if (find_family(config) == nullptr) {
    return ""; // what its fields mean is not known
  }
  std::string text;
  for (const std::string_view key : {"vocab_size", "hidden_size", "intermediate_size", "head_dim"}) {
    if (!config.has(key)) {
      continue;
    }
    const std::int64_t value = config.integer(key);
    const bool involved = std::ranges::any_of(mismatches, [value](const ShapeMismatch& mismatch) {
      const Shape& expected = mismatch.parameter->shape;
      const Shape& stored = mismatch.stored->shape;
      for (std::size_t dim = 0; dim < expected.size(); ++dim) {
        if (expected[dim] == value && (dim >= stored.size() || stored[dim] != value)) {
          return true;
        }
      }
      return false;
    });
    if (involved) {
      text += concat(text.empty() ? "" : ", ", key, " = ", value);
    }
  }
  return text;
}

} // namespace

std::string list_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) {
    text += concat(i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kMostNamed) {
    text += concat(" and ", names.size() - kMostNamed, " more");
  }
  return text;
}

void refuse_missing(const Checkpoint& checkpoint,
                    const ShardPlan& plan,
                    const std::vector<const ShardedParameter*>& missing) {
  std::vector<std::string> names;
  for (const ShardedParameter* parameter : missing) {
    names.push_back(parameter->fqn);
  }
  throw InputError({.code = Code::kMissingParameter,
                    .what = "a parameter has no value in the checkpoint",
                    .where = concat(checkpoint.directory().string(), ": ", list_names(names)),
                    .why = concat(names.size(),
                                  " of ",
                                  plan.parameters().size(),
                                  " parameters are stored under none of ",
                                  "their names; the checkpoint holds ",
                                  checkpoint.tensors().size(),
                                  " tensors"),
                    .fix = missing_fix(checkpoint, plan, missing, names)});
}

void refuse_shapes(const Checkpoint& checkpoint, const std::vector<ShapeMismatch>& mismatches) {
  std::string where;
  std::string why;
  for (std::size_t i = 0; i < std::min(mismatches.size(), kMostNamed); ++i) {
    const auto& [parameter, stored] = mismatches[i];
    const std::string separator = i == 0 ? "" : "; ";
    where += concat(separator, checkpoint.file_name(*stored), ", ", stored->name);
    why += concat(
        separator, stored->name, ": expected ", to_string(parameter->shape), ", stored ", to_string(stored->shape));
  }
  if (mismatches.size() > kMostNamed) {
    why += concat(" and ", mismatches.size() - kMostNamed, " more");
  }
  const std::string keys = keys_that_say(checkpoint.config(), mismatches);
  throw InputError(
      {.code = Code::kShapeMismatch,
       .what = "a stored shape is not the one that the config asks for",
       .where = where,
       .why = why,
       .fix = keys.empty() ? "use the config.json that these weights were saved with"
                           : concat("use the config.json that these weights were saved with; this one says ", keys)});
}

void refuse_dtypes(const Checkpoint& checkpoint, const std::vector<const StoredTensor*>& offenders) {
  std::vector<std::string> names;
  for (const StoredTensor* stored : offenders) {
    names.push_back(concat(stored->name, " (", name(stored->dtype), ")"));
  }
  throw InputError({.code = Code::kDtypeNotLoadable,
                    .what = "a parameter is stored in a dtype that cannot be trained",
                    .where = concat(checkpoint.directory().string(), ": ", list_names(names)),
                    .why = "expected F16, BF16, F32 or F64",
                    .fix = "dequantise the checkpoint, or use the one it was quantised from"});
}

} // namespace tieshard

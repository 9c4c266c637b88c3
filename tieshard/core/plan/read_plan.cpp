#include "tieshard/core/plan/read_plan.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>

#include "tieshard/core/base/units.h"
#include "tieshard/core/families/family.h"

namespace tieshard {
namespace {

constexpr std::size_t kMostNamed = 20; ///< a message that lists more is not read

/// "a, b, ... and 3 more".
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

/// The prefix that, put before or taken from every missing name, gives stored names; empty when there is none.
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

std::string missing_fix(const Checkpoint& checkpoint,
                        const ShardPlan& plan,
                        const std::vector<const ShardedParameter*>& missing,
                        const std::vector<std::string>& names) {
  if (const std::string prefix = foreign_prefix(checkpoint, names); !prefix.empty()) {
    return concat("the stored names begin with \"", prefix, "\": rename them without it, or load that submodule");
  }
  std::string fix;
  for (const ShardedParameter* parameter : missing) {
    if (const StoredTensor* stored = tie_candidate(checkpoint, *parameter)) {
      fix += concat(fix.empty() ? "" : "; ",
                    "if ",
                    parameter->fqn,
                    " shares ",
                    stored->name,
                    ", set tie_word_embeddings",
                    " to true in config.json or pass --tie ",
                    parameter->fqn,
                    "=",
                    stored->name);
    } else if (const StoredTensor* other = only_unclaimed_of_shape(checkpoint, plan, *parameter);
               other != nullptr && missing.size() == 1) {
      fix += concat("if ", other->name, " is this parameter under another name, rename it");
    }
  }
  return fix.empty() ? "use a checkpoint that holds all parameters of the config, or correct config.json" : fix;
}

[[noreturn]] void refuse_missing(const Checkpoint& checkpoint,
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

struct Mismatch {
  const ShardedParameter* parameter;
  const StoredTensor* stored;
};

/// Keys of config.json that say one of the sizes that differ, as "vocab_size = 32000".
std::string keys_that_say(const HfConfig& config, const std::vector<Mismatch>& mismatches) {
  std::string text;
  for (const std::string_view key : {"vocab_size", "hidden_size", "intermediate_size", "head_dim"}) {
    if (!config.has(key)) {
      continue;
    }
    const std::int64_t value = config.integer(key);
    const bool involved = std::ranges::any_of(mismatches, [value](const Mismatch& mismatch) {
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

[[noreturn]] void refuse_shapes(const Checkpoint& checkpoint, const std::vector<Mismatch>& mismatches) {
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

[[noreturn]] void refuse_dtypes(const Checkpoint& checkpoint, const std::vector<const StoredTensor*>& offenders) {
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

/// The source of every parameter of the plan, in its order. Refuses when one has none that fits.
std::vector<const StoredTensor*> find_sources(const Checkpoint& checkpoint, const ShardPlan& plan) {
  std::vector<const StoredTensor*> sources;
  std::vector<const ShardedParameter*> missing;
  std::vector<Mismatch> mismatches;
  std::vector<const StoredTensor*> untrainable;
  for (const ShardedParameter& parameter : plan.parameters()) {
    const StoredTensor* const stored = plan.ties().source(checkpoint, parameter.fqn);
    sources.push_back(stored);
    if (stored == nullptr) {
      missing.push_back(&parameter);
    } else if (stored->shape != parameter.shape) {
      mismatches.push_back({.parameter = &parameter, .stored = stored});
    } else if (!is_wide_float(stored->dtype)) {
      untrainable.push_back(stored);
    }
  }
  if (!missing.empty()) {
    refuse_missing(checkpoint, plan, missing);
  }
  if (!mismatches.empty()) {
    refuse_shapes(checkpoint, mismatches);
  }
  if (!untrainable.empty()) {
    refuse_dtypes(checkpoint, untrainable);
  }
  return sources;
}

void list_unused(const Checkpoint& checkpoint, const ShardPlan& plan, ReadPlan& reads) {
  std::uint64_t bytes = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (plan.find(tensor.name) == nullptr) {
      reads.unused.push_back(tensor.name);
      bytes += tensor.bytes;
    }
  }
  if (!reads.unused.empty()) {
    reads.findings.push_back({.level = Level::kWarning,
                              .code = Code::kUnusedTensor,
                              .what = "a stored tensor is used by no parameter",
                              .where = concat(checkpoint.directory().string(), ": ", list_names(reads.unused)),
                              .why = concat(reads.unused.size(),
                                            " of ",
                                            checkpoint.tensors().size(),
                                            " tensors, ",
                                            format_bytes(bytes),
                                            ", are not read"),
                              .fix = "check that config.json is the one that these weights were saved with"});
  }
}

} // namespace

std::uint64_t ReadPlan::bytes() const {
  std::uint64_t total = 0;
  for (const SliceRead& read : reads) {
    total += read.range.bytes();
  }
  return total;
}

ReadPlan build_read_plan(const Checkpoint& checkpoint, const ShardPlan& plan, std::int64_t rank) {
  const std::vector<const StoredTensor*> sources = find_sources(checkpoint, plan);
  ReadPlan result;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    const StoredTensor& stored = *sources[i];
    const StridedRange range = strided_range(stored.shape, stored.dtype, parameter.dim, plan.range(parameter, rank));
    if (range.bytes() == 0) {
      continue;
    }
    result.reads.push_back({.fqn = parameter.fqn,
                            .stored_name = stored.name,
                            .file = stored.file,
                            .offset = stored.offset,
                            .stored_dtype = stored.dtype,
                            .range = range,
                            .local_shape = plan.local_shape(parameter, rank)});
  }
  std::ranges::sort(result.reads, [](const SliceRead& a, const SliceRead& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  list_unused(checkpoint, plan, result);
  return result;
}

} // namespace tieshard

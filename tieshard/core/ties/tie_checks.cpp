#include "tieshard/core/ties/tie_checks.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tieshard/core/checkpoint/scale_names.h"
#include "tieshard/core/ties/stored_copies.h"

namespace tieshard {
namespace {

/// "; lm_head.weight looks transposed" when one shape is the other reversed.
std::string transposed_hint(const std::string& name, const Shape& shape, const Shape& other) {
  const Shape reversed(shape.rbegin(), shape.rend());
  return reversed == other ? concat("; ", name, " looks transposed") : "";
}

bool has(const TieAlias& alias, TieEvidence evidence) {
  return std::ranges::any_of(alias.reasons,
                             [evidence](const TieReason& reason) { return reason.evidence == evidence; });
}

/// Both places, the file once when it is one.
std::string where_stored(const Checkpoint& checkpoint, const StoredTensor& first, const StoredTensor& second) {
  const std::string first_file = checkpoint.file_name(first);
  const std::string second_file = checkpoint.file_name(second);
  return first_file == second_file ? concat(first_file, ", ", first.name, " and ", second.name)
                                   : concat(first_file, ", ", first.name, " and ", second_file, ", ", second.name);
}

/// A stored name of a group together with its alias entry; the canonical has none.
struct StoredCopy {
  const StoredTensor* tensor = nullptr;
  TieAlias* alias = nullptr;
};

std::vector<StoredCopy> stored_copies(const Checkpoint& checkpoint, TieGroup& group) {
  std::vector<StoredCopy> copies;
  if (const StoredTensor* tensor = checkpoint.find(group.canonical)) {
    copies.push_back({.tensor = tensor, .alias = nullptr});
  }
  for (TieAlias& alias : group.aliases) {
    if (const StoredTensor* tensor = checkpoint.find(alias.name)) {
      copies.push_back({.tensor = tensor, .alias = &alias});
    }
  }
  return copies;
}

/// Two stored copies of one group that differ.
struct Conflict {
  const StoredCopy* first = nullptr;
  const StoredCopy* second = nullptr;
  StoredDifference difference;
};

std::string reasons_of(const TieAlias* alias) {
  std::string text;
  for (const TieReason& reason : alias->reasons) {
    text += concat(text.empty() ? "" : "; ", reason.text);
  }
  return text;
}

/// "--tie A=B" where the caller is why the names are tied; else empty.
std::string flag_of(const TieAlias* alias) {
  for (const TieReason& reason : alias->reasons) {
    if (!reason.flag.empty()) {
      return reason.flag;
    }
  }
  return "";
}

Diagnostic conflict_of_two(const Checkpoint& checkpoint, const Conflict& conflict) {
  const std::string flag = flag_of(conflict.second->alias);
  return {
      .level = Level::kWarning,
      .code = Code::kTieConflict,
      .what = "names declared tied are stored with different values",
      .where = where_stored(checkpoint, *conflict.first->tensor, *conflict.second->tensor),
      .why = concat("first difference at ",
                    to_string(conflict.difference.index),
                    ": ",
                    conflict.difference.first,
                    " and ",
                    conflict.difference.second,
                    "; tied by ",
                    reasons_of(conflict.second->alias)),
      .fix = concat(flag.empty() ? "set tie_word_embeddings to false in config.json" : concat("leave ", flag, " out"),
                    " if two weights are meant, else delete ",
                    conflict.second->tensor->name,
                    " from the file, or choose with --on-tie-conflict canonical or alias")};
}

[[noreturn]] void refuse_ambiguous(const Checkpoint& checkpoint, const TieGroup& group, const Conflict& conflict) {
  std::string names = group.canonical;
  std::string flags; // that join them
  for (const TieAlias& alias : group.aliases) {
    names += concat(", ", alias.name);
    if (const std::string flag = flag_of(&alias); !flag.empty()) {
      flags += concat(flags.empty() ? "leave " : " and ", flag);
    }
  }
  throw InputError({.code = Code::kTieSourceAmbiguous,
                    .what = "three or more tied names are stored with different values",
                    .where = names,
                    .why = concat(where_stored(checkpoint, *conflict.first->tensor, *conflict.second->tensor),
                                  " differ first at ",
                                  to_string(conflict.difference.index),
                                  ": ",
                                  conflict.difference.first,
                                  " and ",
                                  conflict.difference.second,
                                  "; ",
                                  group.aliases.size() + 1,
                                  " names share one weight, so that any choice is a guess"),
                    .fix = concat(flags.empty() ? "" : concat(flags, " out, or "),
                                  "store the right values under one of the names only, or pass --untie for a name that "
                                  "has a weight of its own (set tie_word_embeddings to false for a head)")});
}

/// As first_difference, of what the copies mean: FP8 values with their scales.
std::optional<StoredDifference> difference_of_copies(const Checkpoint& checkpoint,
                                                     const StoredTensor& first,
                                                     const StoredTensor& second) {
  auto difference = first_difference(checkpoint, first, second);
  if (difference || !is_float8(first.dtype)) {
    return difference;
  }
  const StoredTensor* const scale = find_scale(checkpoint, first.name);
  const StoredTensor* const other = find_scale(checkpoint, second.name);
  if (scale == nullptr && other == nullptr) {
    return std::nullopt;
  }
  const Shape origin(first.shape.size());
  if (scale == nullptr || other == nullptr) {
    return StoredDifference{.index = origin,
                            .first = scale == nullptr ? "no scale" : concat("scaled by ", scale->name),
                            .second = other == nullptr ? "no scale" : concat("scaled by ", other->name)};
  }
  if (scale->shape != other->shape) {
    return StoredDifference{.index = origin,
                            .first = concat("scales ", to_string(scale->shape)),
                            .second = concat("scales ", to_string(other->shape))};
  }
  difference = first_difference(checkpoint, *scale, *other);
  if (difference) {
    difference->first = concat(scale->name, " = ", difference->first);
    difference->second = concat(other->name, " = ", difference->second);
  }
  return difference;
}

/// The copy that the caller wants read where copies differ; null where there is not exactly one such value.
const StoredCopy* chosen(const Checkpoint& checkpoint, const std::vector<StoredCopy>& copies, OnTieConflict choice) {
  const bool has_canonical = copies.front().alias == nullptr;
  if (choice == OnTieConflict::kCanonical || !has_canonical) {
    return has_canonical ? &copies.front() : nullptr; // aliases that differ among themselves leave no choice
  }
  for (std::size_t i = 2; i < copies.size(); ++i) {
    if (difference_of_copies(checkpoint, *copies[1].tensor, *copies[i].tensor)) {
      return nullptr;
    }
  }
  return &copies[1];
}

/// Copies that differ: what the caller wants, or else what can be done without a guess. Returns whether they are tied.
bool settle(const Checkpoint& checkpoint,
            TieGroup& group,
            const std::vector<StoredCopy>& copies,
            const Conflict& conflict,
            OnTieConflict choice,
            std::vector<Diagnostic>& findings) {
  const bool is_pair = group.aliases.size() == 1;
  if (choice == OnTieConflict::kCanonical || choice == OnTieConflict::kAlias) {
    const StoredCopy* const source = chosen(checkpoint, copies, choice);
    if (source == nullptr) {
      refuse_ambiguous(checkpoint, group, conflict);
    }
    group.source = source->tensor->name;
    Diagnostic diagnostic = conflict_of_two(checkpoint, conflict);
    diagnostic.why += concat("; ", group.source, " is read, as the caller chose");
    findings.push_back(std::move(diagnostic));
    return true;
  }
  if (!is_pair) {
    refuse_ambiguous(checkpoint, group, conflict);
  }
  Diagnostic diagnostic = conflict_of_two(checkpoint, conflict);
  const TieAlias& alias = *conflict.second->alias;
  const bool bound = has(alias, TieEvidence::kModuleIdentity) || has(alias, TieEvidence::kExplicitMap);
  if (bound || choice == OnTieConflict::kError) {
    diagnostic.level = Level::kError;
    diagnostic.why +=
        bound ? "; the module or the caller holds them to be one tensor" : "; the caller wants no conflict";
    throw InputError(std::move(diagnostic));
  }
  diagnostic.why += "; they are loaded as two weights";
  findings.push_back(std::move(diagnostic));
  return false;
}

/// Equal copies: what there is to say about them.
Diagnostic equal_copies(const Checkpoint& checkpoint, const StoredTensor& first, const StoredTensor& second) {
  const std::string where = where_stored(checkpoint, first, second);
  if (first.dtype != second.dtype) {
    return {.level = Level::kWarning,
            .code = Code::kTieDtypeDiffers,
            .what = "copies of a tied weight are stored in different dtypes",
            .where = where,
            .why = concat(
                "equal values, in ", name(first.dtype), " and ", name(second.dtype), "; ", first.name, " is read"),
            .fix = concat("store one of them only, best ", first.name)};
  }
  return {.level = Level::kNote,
          .code = Code::kTieCopiesEqual,
          .what = "a tied weight is stored under several names, equally",
          .where = where,
          .why = concat("equal bytes; ", first.name, " is read"),
          .fix = concat("nothing has to be done; an export leaves ", second.name, " out")};
}

} // namespace

void require_one_shape(const std::string& where,
                       const Shape& first,
                       const std::string& second_name,
                       const Shape& second) {
  if (first == second) {
    return;
  }
  throw InputError({.code = Code::kTieShapeMismatch,
                    .what = "tied parameters have different shapes",
                    .where = where,
                    .why = concat("expected one shape, got ", to_string(first), " and ", to_string(second)),
                    .fix = concat("give both names one shape, [vocab, hidden] for an embedding and its head",
                                  transposed_hint(second_name, second, first))});
}

bool hold_against_files(const Checkpoint& checkpoint,
                        TieGroup& group,
                        OnTieConflict on_conflict,
                        std::vector<Diagnostic>& findings) {
  const std::vector<StoredCopy> copies = stored_copies(checkpoint, group);
  if (copies.size() < 2) {
    return true;
  }
  const StoredCopy& first = copies.front();
  std::optional<Conflict> conflict;
  for (std::size_t i = 1; i < copies.size(); ++i) {
    const StoredTensor& second = *copies[i].tensor;
    require_one_shape(where_stored(checkpoint, *first.tensor, second), first.tensor->shape, second.name, second.shape);
    if (conflict) {
      continue; // one is enough; the shapes of the others are still looked at
    }
    if (auto difference = difference_of_copies(checkpoint, *first.tensor, second)) {
      conflict = {.first = &first, .second = &copies[i], .difference = *std::move(difference)};
      continue;
    }
    findings.push_back(equal_copies(checkpoint, *first.tensor, second));
    if (first.tensor->dtype == second.dtype) {
      copies[i].alias->reasons.push_back({TieEvidence::kEqualBytes, "both names are stored, with equal bytes"});
    }
  }
  return !conflict || settle(checkpoint, group, copies, *conflict, on_conflict, findings);
}

} // namespace tieshard

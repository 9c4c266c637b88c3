#include "tieshard/core/ties/tie_checks.h"

#include <algorithm>
#include <utility>

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

Diagnostic conflict(const Checkpoint& checkpoint,
                    const StoredTensor& first,
                    const StoredTensor& second,
                    const StoredDifference& difference) {
  return {.level = Level::kWarning,
          .code = Code::kTieConflict,
          .what = "names declared tied are stored with different values",
          .where = where_stored(checkpoint, first, second),
          .why = concat(
              "first difference at ", to_string(difference.index), ": ", difference.first, " and ", difference.second)};
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

bool hold_against_files(const Checkpoint& checkpoint, TieGroup& group, std::vector<Diagnostic>& findings) {
  const std::vector<StoredCopy> copies = stored_copies(checkpoint, group);
  if (copies.size() < 2) {
    return true;
  }
  const StoredTensor& first = *copies.front().tensor;
  for (std::size_t i = 1; i < copies.size(); ++i) {
    const StoredTensor& second = *copies[i].tensor;
    TieAlias& alias = *copies[i].alias;
    require_one_shape(where_stored(checkpoint, first, second), first.shape, second.name, second.shape);
    const auto difference = first_difference(checkpoint, first, second);
    if (!difference) {
      findings.push_back(equal_copies(checkpoint, first, second));
      if (first.dtype == second.dtype) {
        alias.reasons.push_back({TieEvidence::kEqualBytes, concat("both names are stored, with equal bytes")});
      }
      continue;
    }
    Diagnostic diagnostic = conflict(checkpoint, first, second, *difference);
    const bool bound = has(alias, TieEvidence::kModuleIdentity) || has(alias, TieEvidence::kExplicitMap);
    if (bound || group.aliases.size() > 1) {
      diagnostic.level = Level::kError;
      diagnostic.why += bound
                            ? "; the module or the caller holds them to be one tensor"
                            : concat("; ", group.aliases.size() + 1, " names share it, so that any choice is a guess");
      diagnostic.fix = "store the right values under one of the names only, or load into an untied model";
      throw InputError(std::move(diagnostic));
    }
    diagnostic.why += "; they are loaded as two weights";
    diagnostic.fix = concat("set the tie flag to false in config.json if two weights are meant, else delete ",
                            second.name,
                            " from the file");
    findings.push_back(std::move(diagnostic));
    return false;
  }
  return true;
}

} // namespace tieshard

// tieshard/core/families/name_changes.h
//
// What holds of stored names whoever changes them: a wrapper wraps whole modules, and no two tensors get one name.
//
// Flow: name_mapping.cpp, stored_names.cpp -> [this] -> wrapper_parts.h

#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/wrapper_parts.h"

namespace tieshard {

/// A name in the files and what it becomes.
struct ChangedName {
  std::string_view stored;
  std::string_view name;
};

/// A name in the files, the same without wrapper parts, and where these stood.
struct WrappedName {
  std::string_view stored;
  std::string_view name;
  std::span<const WrapPoint> points{};
};

/// Where a wrapper stood in one name of a module but not, or not alike, in another.
struct PartlyWrapped {
  WrapPoint point;
  std::string with;        ///< in the files
  std::string other;       ///< in the files, of the same module
  std::string other_parts; ///< that stand there in `other`; empty for none
};

/// Every point of `names`, which are all that count, where the names of its module differ; empty when none does.
std::vector<PartlyWrapped> partly_wrapped(const std::vector<WrappedName>& names);

/// @throws InputError mixed-prefixes, naming both names as they are stored
[[noreturn]] void refuse_mixed_names(const Checkpoint& checkpoint,
                                     std::string_view first,
                                     std::string_view second,
                                     const std::string& why);
[[noreturn]] void refuse_mixed_names(const Checkpoint& checkpoint, const PartlyWrapped& mixed);

/// @throws InputError mixed-prefixes where two of `names` become one
void require_distinct_names(const Checkpoint& checkpoint, const std::vector<ChangedName>& names);

/// "module., _orig_mod. is taken out"
std::string taken_out(const std::set<std::string>& parts);

/// The finding for all tensors that one kind of change concerns: a warning, or an error when names are to stay.
///
/// @param code  wrapper-prefix or base-model-prefix
/// @param said  what is done to their names
/// @param concerned  at least one
Diagnostic renaming(const Checkpoint& checkpoint,
                    Code code,
                    const std::string& said,
                    const std::vector<ChangedName>& concerned,
                    bool rename);

} // namespace tieshard

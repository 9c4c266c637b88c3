#include "tieshard/core/optim/frozen_parameters.h"

#include <algorithm>

#include "tieshard/core/base/error.h"

namespace tieshard {

std::vector<bool> frozen_parameters(const std::vector<std::string>& patterns,
                                    const std::vector<GroupCandidate>& candidates) {
  std::vector<bool> frozen(candidates.size(), false);
  for (const std::string& pattern : patterns) {
    bool idle = true;
    for (std::size_t index = 0; index < candidates.size(); ++index) {
      const auto has_it = [&](const std::string& name) { return matches(pattern, name); };
      if (!pattern.empty() && std::ranges::any_of(candidates[index].names, has_it)) {
        frozen[index] = true;
        idle = false;
      }
    }
    if (idle) {
      throw InputError(
          {.code = Code::kUnknownParameter,
           .what = "a pattern of parameters to freeze takes none",
           .where = concat("--freeze \"", pattern, "\""),
           .why = concat("expected a part of a parameter's name, got none that has it among ", candidates.size()),
           .fix = "`tieshard inspect` lists the names; leave the pattern out if there is none"});
    }
  }
  if (!patterns.empty() && std::ranges::all_of(frozen, [](bool is_frozen) { return is_frozen; })) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a run would train nothing",
                      .where = "--freeze",
                      .why = concat("expected a parameter that is trained, got all ", candidates.size(), " frozen"),
                      .fix = "give narrower patterns"});
  }
  return frozen;
}

} // namespace tieshard

#include "tieshard/core/families/name_changes.h"

#include <algorithm>
#include <unordered_map>

namespace tieshard {
namespace {

/// A place at which a wrapper stands in some name.
struct Uses {
  const WrapPoint* point = nullptr;
  const WrappedName* example = nullptr;
  const WrappedName* other = nullptr; ///< with other parts at this place, or without any
  std::string_view other_parts{};
};

const WrapPoint* point_at(const WrappedName& name, std::string_view module) {
  const auto found =
      std::ranges::find(name.points, module, [](const WrapPoint& point) -> std::string_view { return point.module; });
  return found == name.points.end() ? nullptr : &*found;
}

} // namespace

std::vector<PartlyWrapped> partly_wrapped(const std::vector<WrappedName>& names) {
  std::unordered_map<std::string_view, Uses> uses;
  std::vector<std::string_view> order; // of first appearance
  for (const WrappedName& name : names) {
    for (const WrapPoint& point : name.points) {
      Uses& use = uses[point.module];
      if (use.point == nullptr) {
        use.point = &point;
        use.example = &name;
        order.push_back(point.module);
      } else if (use.other == nullptr && use.point->parts != point.parts) {
        use.other = &name;
        use.other_parts = point.parts;
      }
    }
  }
  if (uses.empty()) {
    return {};
  }
  for (const WrappedName& name : names) {
    for (std::size_t length = 0; length != std::string_view::npos;) {
      const auto use = uses.find(name.name.substr(0, length));
      if (use != uses.end() && use->second.other == nullptr && point_at(name, use->first) == nullptr) {
        use->second.other = &name;
      }
      const std::size_t dot = name.name.find('.', length);
      length = dot == std::string_view::npos ? dot : dot + 1;
    }
  }
  std::vector<PartlyWrapped> mixed;
  for (const std::string_view module : order) {
    const Uses& use = uses.at(module);
    if (use.other != nullptr) {
      mixed.push_back({.point = *use.point,
                       .with = std::string(use.example->stored),
                       .other = std::string(use.other->stored),
                       .other_parts = std::string(use.other_parts)});
    }
  }
  return mixed;
}

void refuse_mixed_names(const Checkpoint& checkpoint,
                        std::string_view first,
                        std::string_view second,
                        const std::string& why) {
  throw InputError({.code = Code::kMixedPrefixes,
                    .what = "stored names carry prefixes that contradict each other",
                    .where = concat(checkpoint.directory().string(), ": ", first, " and ", second),
                    .why = why,
                    .fix = "save the model again in one piece, or rename or delete one set of the tensors"});
}

void refuse_mixed_names(const Checkpoint& checkpoint, const PartlyWrapped& mixed) {
  refuse_mixed_names(checkpoint,
                     mixed.with,
                     mixed.other,
                     concat(mixed.point.module.empty() ? "the first" : concat("in ", mixed.point.module, " the first"),
                            " is stored with ",
                            mixed.point.parts,
                            ", the second ",
                            mixed.other_parts.empty() ? "not" : concat("with ", mixed.other_parts)));
}

void require_distinct_names(const Checkpoint& checkpoint, const std::vector<ChangedName>& names) {
  std::unordered_map<std::string_view, std::string_view> taken;
  taken.reserve(names.size());
  for (const ChangedName& each : names) {
    const auto [other, added] = taken.emplace(each.name, each.stored);
    if (!added) {
      refuse_mixed_names(checkpoint,
                         each.stored,
                         other->second,
                         concat("both would be ", each.name, ", and which of them is right cannot be told"));
    }
  }
}

std::string taken_out(const std::set<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) {
    all += concat(all.empty() ? "" : ", ", part);
  }
  return concat(all, " is taken out");
}

Diagnostic renaming(const Checkpoint& checkpoint,
                    Code code,
                    const std::string& said,
                    const std::vector<ChangedName>& concerned,
                    bool rename) {
  const ChangedName& example = concerned.front();
  Diagnostic diagnostic{
      .level = rename ? Level::kWarning : Level::kError,
      .code = code,
      .what = std::string(code == Code::kWrapperPrefix ? "stored names carry a wrapper's prefix"
                                                       : "stored names lack or add the base model's prefix"),
      .where = concat(checkpoint.directory().string(), ": ", example.stored),
      .why = concat(said,
                    ", so that ",
                    concerned.size(),
                    concerned.size() == 1 ? " tensor has" : " tensors have",
                    " names of the model: ",
                    example.stored,
                    " -> ",
                    example.name),
      .fix = "nothing has to be done; an export writes the model's names"};
  if (!rename) {
    diagnostic.why = concat("renaming is switched off; ", diagnostic.why);
    diagnostic.fix = "leave --no-rename out, or rename the tensors in the files";
  }
  return diagnostic;
}

} // namespace tieshard

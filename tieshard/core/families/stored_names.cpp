#include "tieshard/core/families/stored_names.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "tieshard/core/checkpoint/adapter_names.h"
#include "tieshard/core/families/name_changes.h"
#include "tieshard/core/families/wrapper_parts.h"

namespace tieshard {
namespace {

constexpr std::string_view kPeftPrefix = "base_model.model."; ///< of PEFT; alone, its two parts may be a model's own
constexpr std::string_view kBaseLayer = "base_layer";
constexpr std::string_view kModule = "module";

bool is_parameter(const StoredTensor& tensor) {
  return is_loadable_float(tensor.dtype);
}

/// What a wrapper can put in front of all names.
std::vector<std::string> front_pieces() {
  std::vector<std::string> pieces = {std::string(kPeftPrefix)};
  for (const std::string_view part : kWrapperParts) {
    if (part != kBaseLayer) { // PEFT wraps layers in it, never a model
      pieces.push_back(concat(part, "."));
    }
  }
  return pieces;
}

/// The pieces in front of all parameters, outermost first. @throws InputError mixed-prefixes
std::vector<std::string> common_front(const Checkpoint& checkpoint) {
  const std::vector<std::string> pieces = front_pieces();
  std::vector<std::string> front;
  std::size_t length = 0;
  for (bool found = true; found;) {
    found = false;
    for (const std::string& piece : pieces) {
      const StoredTensor* with = nullptr;
      const StoredTensor* without = nullptr;
      for (const StoredTensor& tensor : checkpoint.tensors()) {
        if (is_parameter(tensor)) {
          const StoredTensor*& first = std::string_view(tensor.name).substr(length).starts_with(piece) ? with : without;
          first = first == nullptr ? &tensor : first;
        }
      }
      if (with != nullptr && without != nullptr) {
        refuse_mixed_names(checkpoint,
                           with->stored_name,
                           without->stored_name,
                           concat("the first is stored with ", piece, ", the second not"));
      }
      if (with != nullptr) {
        front.push_back(piece);
        length += piece.size();
        found = true;
        break;
      }
    }
  }
  return front;
}

/// A tensor and the name that it gets.
struct Renamed {
  const StoredTensor* tensor = nullptr;
  UnwrappedName unwrapped;
};

std::vector<Renamed> without_wrappers(const Checkpoint& checkpoint,
                                      const std::string& front,
                                      const std::set<std::string_view>& own) {
  const auto is_own = [&own](std::string_view part) { return own.contains(part); };
  std::vector<Renamed> renamed;
  renamed.reserve(checkpoint.tensors().size());
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    std::string_view name = tensor.name;
    if (name.starts_with(front)) {
      name.remove_prefix(front.size());
    }
    renamed.push_back({.tensor = &tensor, .unwrapped = unwrap(name, is_own)});
  }
  return renamed;
}

/// Whether parts at one place are all such as a model may have itself.
bool may_be_own(const WrapPoint& point) {
  std::string_view parts = point.parts;
  while (!parts.empty()) {
    const std::string_view part = parts.substr(0, parts.find('.'));
    if (part != kModule && part != kBaseLayer) {
      return false;
    }
    parts.remove_prefix(part.size() + 1);
  }
  return true;
}

/// Adds to `own` the parts that stand in some names of a module only. Returns whether there were any.
/// @throws InputError mixed-prefixes where no model has such a part
bool find_own_parts(const Checkpoint& checkpoint,
                    const std::vector<Renamed>& renamed,
                    std::set<std::string_view>& own) {
  std::vector<WrappedName> names;
  for (const Renamed& each : renamed) {
    if (is_parameter(*each.tensor)) {
      names.push_back(
          {.stored = each.tensor->stored_name, .name = each.unwrapped.name, .points = each.unwrapped.wrapped});
    }
  }
  const std::size_t before = own.size();
  for (const PartlyWrapped& mixed : partly_wrapped(names)) {
    if (!may_be_own(mixed.point)) {
      refuse_mixed_names(checkpoint, mixed);
    }
    own.insert(mixed.point.parts.starts_with(kModule) ? kModule : kBaseLayer);
  }
  return own.size() > before;
}

NameMapping mapping_of(const Checkpoint& checkpoint,
                       const std::vector<std::string>& front,
                       const std::vector<Renamed>& renamed,
                       bool rename) {
  NameMapping mapping;
  std::set<std::string> parts(front.begin(), front.end());
  std::vector<ChangedName> changed;
  for (const auto& [tensor, unwrapped] : renamed) {
    if (unwrapped.name == tensor->name) {
      continue;
    }
    changed.push_back({.stored = tensor->stored_name, .name = unwrapped.name});
    mapping.names.emplace(tensor->stored_name, unwrapped.name);
    for (const WrapPoint& point : unwrapped.wrapped) {
      parts.insert(point.parts);
    }
  }
  if (!changed.empty()) {
    mapping.findings.push_back(renaming(checkpoint, Code::kWrapperPrefix, taken_out(parts), changed, rename));
  }
  return mapping;
}

} // namespace

NameMapping find_wrapper_mapping(const Checkpoint& checkpoint, const NameMappingOptions& options) {
  const std::vector<std::string> front = common_front(checkpoint);
  std::string whole_front;
  for (const std::string& piece : front) {
    whole_front += piece;
  }
  std::set<std::string_view> own;
  if (std::ranges::any_of(checkpoint.tensors(), [](const StoredTensor& each) { return is_adapter_name(each.name); })) {
    own.insert(kBaseLayer);
  }
  std::vector<Renamed> renamed;
  do {
    renamed = without_wrappers(checkpoint, whole_front, own);
    std::vector<ChangedName> names;
    for (const Renamed& each : renamed) {
      names.push_back({.stored = each.tensor->stored_name, .name = each.unwrapped.name});
    }
    require_distinct_names(checkpoint, names);
  } while (find_own_parts(checkpoint, renamed, own));
  NameMapping mapping = mapping_of(checkpoint, front, renamed, options.rename);
  if (!options.rename && !mapping.findings.empty()) {
    throw InputError(mapping.findings.front());
  }
  return mapping;
}

} // namespace tieshard

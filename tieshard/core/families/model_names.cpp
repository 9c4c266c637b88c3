#include "tieshard/core/families/model_names.h"

namespace tieshard {
namespace {

/// "model.norm" of "model.norm.weight"; empty for a name without a dot, which no module is called.
std::string_view parent(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

} // namespace

ModelNames::ModelNames(const ParameterTable& table, const Family& family) : table_(table), family_(family) {
  parameters_.reserve(table.size());
  modules_.reserve(table.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    std::string_view name = table[i].fqn;
    parameters_.emplace(name, i);
    bool holds_it = true;
    for (std::size_t dot = name.rfind('.'); dot != std::string_view::npos; dot = name.rfind('.')) {
      parts_.insert(name.substr(dot + 1));
      name = name.substr(0, dot);
      const auto [module, added] = modules_.emplace(name, holds_it);
      module->second |= holds_it;
      holds_it = false;
      if (!added) { // then what is around it is known as well
        break;
      }
    }
    if (name.find('.') == std::string_view::npos) {
      parts_.insert(name);
    }
  }
}

std::optional<std::size_t> ModelNames::parameter(std::string_view name) const {
  constexpr std::string_view kBlocks = "_blocks";
  auto found = parameters_.find(name);
  if (found == parameters_.end() && name.ends_with(kBlocks)) {
    found = parameters_.find(name.substr(0, name.size() - kBlocks.size()));
  }
  return found == parameters_.end() ? std::nullopt : std::optional(found->second);
}

bool ModelNames::knows(std::string_view name) const {
  if (parameters_.contains(name)) {
    return true;
  }
  const std::string_view module = parent(name);
  const auto found = modules_.find(module);
  if (found != modules_.end() && found->second) {
    return true;
  }
  return family_.is_known_buffer(name) && (found != modules_.end() || modules_.contains(parent(module)));
}

bool ModelNames::has_part(std::string_view part) const {
  return parts_.contains(part);
}

} // namespace tieshard

#include "tieshard/runtime/fsdp/unit_ownership.h"

#include <algorithm>
#include <unordered_map>

namespace tieshard {
namespace {

/// Length of the longest of `paths` that `fqn` lies in, plus 1; 0 when it lies in none.
std::size_t depth(const std::string& fqn, const std::vector<std::string>& paths) {
  std::size_t deepest = 0;
  for (const std::string& path : paths) {
    if (path.empty() || fqn.starts_with(path + ".")) {
      deepest = std::max(deepest, path.size() + 1);
    }
  }
  return deepest;
}

} // namespace

UnitOwnership::UnitOwnership(const torch::nn::Module& module, const std::vector<UnitModule>& units) {
  std::unordered_map<const torch::nn::Module*, std::size_t> index_of;
  for (const UnitModule& unit : units) {
    index_of.emplace(unit.module, paths_.size());
    for (const torch::nn::Module* other : unit.with) {
      index_of.emplace(other, paths_.size());
    }
    paths_.push_back({unit.name});
  }
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (const auto found = index_of.find(item.value().get()); found != index_of.end()) {
      paths_[found->second].push_back(item.key());
    }
  }
}

std::optional<std::size_t> UnitOwnership::owner(const std::vector<std::string>& names) const {
  std::optional<std::size_t> best;
  std::size_t best_depth = 0;
  for (std::size_t index = 0; index < paths_.size(); ++index) {
    const bool all = std::ranges::all_of(names, [&](const std::string& fqn) { return depth(fqn, paths_[index]) > 0; });
    const std::size_t found = all ? depth(names.front(), paths_[index]) : 0;
    if (found > best_depth) {
      best = index;
      best_depth = found;
    }
  }
  return best;
}

} // namespace tieshard

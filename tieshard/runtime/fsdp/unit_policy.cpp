#include "tieshard/runtime/fsdp/unit_policy.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

/// Each module inside `root` once, under its first name.
std::vector<UnitModule> modules_inside(const torch::nn::Module& root) {
  std::vector<UnitModule> modules;
  std::unordered_set<const torch::nn::Module*> seen;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (seen.insert(item.value().get()).second) {
      modules.push_back({item.key(), item.value().get()});
    }
  }
  return modules;
}

bool is_container(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}

/// Walks from the leaves up and takes what has become large enough.
class SizeWalk {
 public:
  explicit SizeWalk(std::int64_t numel) : numel_(numel) {}

  /// @returns elements inside `module` that no unit holds
  std::int64_t walk(const std::string& fqn, torch::nn::Module& module) {
    std::int64_t held = 0;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      held += tensors_.insert(parameter.value().unsafeGetTensorImpl()).second ? parameter.value().numel() : 0;
    }
    for (const auto& child : module.named_children()) {
      if (modules_.insert(child.value().get()).second) {
        held += walk(fqn.empty() ? child.key() : concat(fqn, ".", child.key()), *child.value());
      }
    }
    if (fqn.empty() || held < numel_ || is_container(module)) {
      return held;
    }
    units_.push_back({fqn, &module});
    return 0;
  }

  std::vector<UnitModule> take_units() {
    return std::move(units_);
  }

 private:
  std::int64_t numel_;
  std::unordered_set<const c10::TensorImpl*> tensors_;
  std::unordered_set<const torch::nn::Module*> modules_;
  std::vector<UnitModule> units_;
};

void require_known(const std::vector<std::string>& fqns, const torch::nn::Module& root) {
  const auto modules = root.named_modules("", /*include_self=*/false);
  std::string unknown;
  for (const std::string& fqn : fqns) {
    if (!modules.contains(fqn)) {
      unknown += concat(unknown.empty() ? "" : ", ", fqn);
    }
  }
  if (!unknown.empty()) {
    throw UsageError({.code = Code::kUnknownUnit,
                      .what = "a unit is asked for that the module does not have",
                      .where = unknown,
                      .fix = "write the module's dotted name from the root, as named_modules() gives it"});
  }
}

} // namespace

UnitPolicy units_where(std::function<bool(const std::string& fqn, const torch::nn::Module& module)> takes) {
  return [takes = std::move(takes)](torch::nn::Module& root) {
    std::vector<UnitModule> units = modules_inside(root);
    std::erase_if(units, [&](const UnitModule& unit) { return !takes(unit.name, *unit.module); });
    return units;
  };
}

UnitPolicy units_of_size(std::int64_t numel) {
  if (numel < 1) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a unit of no size",
                      .where = "units_of_size",
                      .why = concat("expected at least 1 element, got ", numel),
                      .fix = "give the number of elements that a unit is to hold at least, e.g. 10000000"});
  }
  return [numel](torch::nn::Module& root) {
    SizeWalk walk(numel);
    walk.walk("", root);
    return walk.take_units();
  };
}

UnitPolicy units_named(std::vector<std::string> fqns) {
  return [fqns = std::move(fqns)](torch::nn::Module& root) {
    std::vector<UnitModule> units;
    for (const auto& item : root.named_modules("", /*include_self=*/false)) {
      if (std::ranges::find(fqns, item.key()) != fqns.end()) {
        units.push_back({item.key(), item.value().get()});
      }
    }
    require_known(fqns, root);
    return units;
  };
}

UnitPolicy units_together(std::vector<std::vector<std::string>> lists) {
  for (const std::vector<std::string>& list : lists) {
    if (list.empty()) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "a unit is empty or given twice",
                        .where = "units_together",
                        .why = "expected lists of at least one name, got an empty one",
                        .fix = "leave the empty list out"});
    }
  }
  return [lists = std::move(lists)](torch::nn::Module& root) {
    std::vector<UnitModule> units;
    const auto modules = root.named_modules("", /*include_self=*/false);
    for (const std::vector<std::string>& list : lists) {
      require_known(list, root);
      UnitModule& unit = units.emplace_back(UnitModule{list.front(), modules[list.front()].get()});
      for (std::size_t index = 1; index < list.size(); ++index) {
        unit.with.push_back(modules[list[index]].get());
      }
    }
    return units;
  };
}

UnitPolicy units_of_all(std::vector<UnitPolicy> policies) {
  return [policies = std::move(policies)](torch::nn::Module& root) {
    std::vector<UnitModule> units;
    for (const UnitPolicy& policy : policies) {
      const std::vector<UnitModule> taken = policy(root);
      units.insert(units.end(), taken.begin(), taken.end());
    }
    return units;
  };
}

} // namespace tieshard

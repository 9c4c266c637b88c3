// tieshard/runtime/fsdp/unit_policy.h
//
// Which modules of a model become units: by class, by a condition, by size, by name, or several as one.
//
// Flow:   caller -> [this] -> fully_shard
// Source: FSDP1's wrap policies (torch/distributed/fsdp/wrap.py); FSDP2 leaves the choice to the caller's loop.
//
// A policy only says what is gathered together. The forward of each module that it takes has to go through the state
// (run or run_tensors); a forward in which one did not is refused, since its parameters were still shards.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// The units inside `root`, in registration order; the root itself is none of them. A module that is registered under
/// several names comes once, under its first.
using UnitPolicy = std::function<std::vector<UnitModule>(torch::nn::Module& root)>;

/// Each module that `takes`, given its fqn and itself. Modules inside one that was taken are asked too.
UnitPolicy units_where(std::function<bool(const std::string& fqn, const torch::nn::Module& module)> takes);

/// Each module of one of these classes (LinearImpl, not its holder Linear). What derives from them counts.
template <typename... Classes>
UnitPolicy units_of_class() {
  return units_where([](const std::string&, const torch::nn::Module& module) {
    return ((dynamic_cast<const Classes*>(&module) != nullptr) || ...);
  });
}

/// From the leaves up: a module becomes a unit when it holds at least `numel` elements of parameters that no unit
/// further inside holds. A tensor counts once, where it is registered first. Containers (ModuleList, ModuleDict) are
/// none: they have no forward. @throws UsageError wrong-state when `numel` is below 1
UnitPolicy units_of_size(std::int64_t numel);

/// The modules of these fqns. @throws UsageError unknown-unit, when it is applied, for a name that no module has
UnitPolicy units_named(std::vector<std::string> fqns);

/// The modules of each list together as one unit: what fully_shard([norm, lm_head]) is in FSDP2. A unit has the name of
/// the first of its list.
/// @throws UsageError unknown-unit, when it is applied, for a name that no module has; wrong-state for an empty list
UnitPolicy units_together(std::vector<std::vector<std::string>> lists);

/// What all of `policies` take, in their order. A module that two of them take is refused by fully_shard.
UnitPolicy units_of_all(std::vector<UnitPolicy> policies);

} // namespace tieshard

// tieshard/runtime/fsdp/unit_ownership.h
//
// Which unit owns which parameter: the innermost one that holds all uses of it.
//
// Flow:   fully_shard -> [this]
// Source: FSDP2 gives a parameter to the first fully_shard call that reaches it and refuses one that several units
//         share; here the lowest common ancestor owns it, so that it is whole throughout all of its uses.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

class UnitOwnership {
 public:
  /// @param units  modules inside `module`, or it itself; the order does not matter
  UnitOwnership(const torch::nn::Module& module, const std::vector<UnitModule>& units);

  /// @param names  every name of one parameter
  /// @returns index of the unit that owns it; nothing when no unit holds all of the names
  std::optional<std::size_t> owner(const std::vector<std::string>& names) const;

 private:
  std::vector<std::vector<std::string>> paths_; ///< of each unit; several when its module is registered several times
};

} // namespace tieshard

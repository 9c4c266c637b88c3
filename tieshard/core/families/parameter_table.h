// tieshard/core/families/parameter_table.h
//
// The parameters of a model as plain data: what core knows of a module, and what a config.json alone tells.
//
// Flow: runtime/load/meta_init (from a module) or families/family.h (from config.json) -> [this] -> ties, plan

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/shape.h"

namespace tieshard {

/// One name of one parameter. Two entries with the same `identity` are one tensor under two names.
struct ParameterInfo {
  std::string fqn;            ///< dotted name from the root module
  Shape shape;                ///< whole (unsharded) shape
  DType dtype = DType::kF32;  ///< of the parameter in memory
  std::uint64_t identity = 0; ///< equal for names of one tensor; only compared, never dereferenced
  /// The file holds the last two dimensions swapped, as Conv1D of GPT-2 does for a module that has a Linear.
  bool stored_transposed = false;
};

/// In registration order, as Python's named_parameters(remove_duplicate=False) yields them. Each name once.
using ParameterTable = std::vector<ParameterInfo>;

} // namespace tieshard

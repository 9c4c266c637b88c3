// tieshard/runtime/fsdp/policy.h
//
// What a caller of fully_shard can choose.
//
// Flow:   caller -> [this] -> fully_shard
// Source: torch.distributed.fsdp MixedPrecisionPolicy and fully_shard (torch 2.13).

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/unit_policy.h"

namespace tieshard {

/// Dtypes of a unit's work. Parameters, their gradients and the optimizer's state stay in the dtype that the module was
/// loaded in; nothing set means: no conversion.
struct MixedPrecisionPolicy {
  std::optional<at::ScalarType> param_dtype{};  ///< of the unsharded parameters and of the computation
  std::optional<at::ScalarType> reduce_dtype{}; ///< of the gradient reduction; param_dtype when not set
  std::optional<at::ScalarType> output_dtype{}; ///< of the root's output
  bool cast_forward_inputs = true;              ///< floating point inputs of a unit become param_dtype
};

struct FullyShardOptions {
  MixedPrecisionPolicy mp_policy{};

  /// Free a unit's whole parameters after its forward and gather them again for its backward. The root unit always
  /// keeps them, since its backward comes first.
  bool reshard_after_forward = true;

  /// Gradients are divided by this after the sum over ranks; the number of ranks when not set (the mean, as FSDP2
  /// does). A trainer whose loss is already divided by the global number of targets sets 1.
  std::optional<double> gradient_divide_factor{};

  /// The units inside the module, where fully_shard is not given them. Not set: the model's own units, if it is one of
  /// ours; else one unit, the whole module.
  UnitPolicy unit_policy{};

  /// Parameters that stay as they are, whole on every rank and unmanaged: by any of their names, or by tensor.
  std::vector<std::string> ignored{};
  std::vector<at::Tensor> ignored_tensors{};

  /// Allow a forward of the root in which a unit does not run, as a model with optional parts has it. Otherwise that is
  /// refused: mostly the unit's module was called without the state, on shards.
  bool allow_idle_units = false;

  /// Where fully_shard makes the plan itself: the dim that parameters are sharded on, and exceptions by name.
  ShardDimPolicy shard_dim = ShardDimPolicy::kLast;
  std::map<std::string, int> shard_dims{};
};

} // namespace tieshard

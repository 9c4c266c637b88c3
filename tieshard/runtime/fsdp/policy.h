// tieshard/runtime/fsdp/policy.h
//
// What a caller of fully_shard can choose.
//
// Flow:   caller -> [this] -> fully_shard
// Source: torch.distributed.fsdp MixedPrecisionPolicy and fully_shard (torch 2.13).

#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

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
};

} // namespace tieshard

// tieshard/runtime/fsdp/policy.h
//
// What a caller of fully_shard can choose.
//
// Flow:   caller -> [this] -> fully_shard
// Source: torch.distributed.fsdp MixedPrecisionPolicy and fully_shard (torch 2.13).

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
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
  /// Of the floating point outputs: the root's; of another unit's where FullyShardOptions::per_unit gives it a policy.
  std::optional<at::ScalarType> output_dtype{};
  bool cast_forward_inputs = true; ///< floating point inputs of a unit become param_dtype
};

/// What happens to a unit's whole parameters between its forward and its backward. true: freed, and gathered again from
/// all ranks. false: kept. N, which must divide the number of ranks: freed but for this rank's Nth, and gathered from N
/// neighbouring ranks (those of one host, mostly); 1 is false and the number of ranks is true.
using ReshardAfterForward = std::variant<bool, std::int64_t>;

/// Where shards, their gradients and the optimizer's state lie while their unit does not run.
struct OffloadPolicy {
  /// In host memory, whatever device the unit computes on. On a CPU they are there already: nothing is copied.
  bool to_host = false;
};

/// What is different for one unit; nothing set means: as for all.
struct UnitOptions {
  std::optional<MixedPrecisionPolicy> mp_policy{};
  std::optional<ReshardAfterForward> reshard_after_forward{};
  std::optional<bool> activation_checkpointing{};
};

struct FullyShardOptions {
  MixedPrecisionPolicy mp_policy{};

  /// Of each unit but the root, which always keeps its whole parameters, since its backward comes first.
  ReshardAfterForward reshard_after_forward = true;

  /// Gradients are divided by this after the sum over ranks; the number of ranks when not set (the mean, as FSDP2
  /// does). A trainer whose loss is already divided by the global number of targets sets 1.
  std::optional<double> gradient_divide_factor{};

  /// By the unit's name, "" for the root.
  std::map<std::string, UnitOptions> per_unit{};

  OffloadPolicy offload_policy{};

  /// Of each unit but the root: keep only its inputs, and compute it again in the backward pass. The unit is gathered
  /// once for both. What its forward captures by reference has to live until then, and it must compute the same again;
  /// random numbers are those of the first time.
  bool activation_checkpointing = false;

  /// How many of the units that come next are gathered when one begins: in a forward in the order of the last one, in a
  /// backward in the opposite order. Over Gloo such a gather goes on while the unit before it computes; over shared
  /// memory, which the ranks' own processors move, it is done at once: earlier, but not hidden.
  std::int64_t forward_prefetch = 0;
  std::int64_t backward_prefetch = 0;

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

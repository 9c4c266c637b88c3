// tieshard/runtime/fsdp/fsdp_param.h
//
// One managed parameter: whole while its unit runs, this rank's shard otherwise; the same object all the time.
//
// Flow:   fully_shard -> [this] -> fsdp_param_group
// Source: FSDP2's FSDPParam (torch/distributed/fsdp/_fully_shard/_fsdp_param.py), which swaps two objects instead.
//
// Note: [Same storage] Autograd may hold views of the whole parameter (linear saves weight.t()). So the whole tensor is
// one
//       storage for the life of the model: freed by resizing it to zero, refilled in place before backward.

#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/mesh/part_collectives.h"

namespace tieshard {

class FsdpParam {
 public:
  /// What the constructor throws, before anything is cut.
  /// @throws UsageError foreign-shape when the tensor is neither whole nor this rank's shard, still-on-meta,
  /// wrong-state
  ///         when it requires a gradient and is not floating point
  static void require_shardable(const ShardPlan& plan,
                                const ShardedParameter& spec,
                                const at::Tensor& parameter,
                                std::int64_t rank);

  /// @param parameter  the module's tensor: whole, or already this rank's shard
  /// @param compute    dtype of the whole parameter while its unit runs
  /// @param offload    where the shard lies; the whole parameter is on the device that `parameter` came on
  /// @throws as require_shardable
  FsdpParam(const ShardPlan& plan,
            const ShardedParameter& spec,
            at::Tensor parameter,
            std::int64_t rank,
            at::ScalarType compute,
            const OffloadPolicy& offload = {});

  const std::string& fqn() const noexcept {
    return spec_.fqn;
  }
  /// The module's own tensor.
  const at::Tensor& parameter() const noexcept {
    return parameter_;
  }
  /// This rank's part; shares storage with parameter() while sharded.
  const at::Tensor& shard() const noexcept {
    return shard_;
  }
  const ShardedParameter& spec() const noexcept {
    return spec_;
  }
  /// True when every rank holds all of it (0-dim).
  bool replicated() const noexcept {
    return spec_.dim < 0;
  }
  /// True when the shard is the whole in the compute dtype: nothing to gather.
  bool whole() const noexcept {
    return whole_;
  }
  bool unsharded() const noexcept {
    return unsharded_;
  }
  /// Whether a backward pass leaves gradients that have to be reduced. The same on every rank.
  bool trainable() const {
    return parameter_.requires_grad();
  }
  /// The whole parameter in the compute dtype; without bytes while sharded (unless whole()).
  const at::Tensor& whole_tensor() const noexcept {
    return whole_tensor_;
  }

  /// The whole tensor and this rank's shard in its dtype and on its device, for a gather. Pre: storage is allocated.
  CutTensor gathered() const;

  /// `gradient` (whole, contiguous) and an uninitialised shard of it in `dtype` on its device, for a reduction.
  CutTensor reduced(const at::Tensor& gradient, at::ScalarType dtype) const;

  /// @throws UsageError wrong-state when the parameter no longer shares its storage with the shard. Pre: sharded
  void require_own_storage() const;

  void allocate_whole();

  /// The module's tensor becomes the whole one. Pre: allocated and filled (or whole()).
  void use_whole();

  /// The module's tensor becomes the shard again; the whole one's bytes are freed.
  void use_shard();

  /// Takes the gradient off the tensor before a backward pass, so that the whole gradient has a clean place.
  void stash_sharded_gradient();

  /// Takes the whole gradient that backward passes left, those of keep_whole_gradient() too; undefined without any.
  at::Tensor take_whole_gradient();

  /// Puts what take_whole_gradient() would give aside, in `dtype`, to be reduced later.
  void keep_whole_gradient(at::ScalarType dtype);

  /// Forgets what keep_whole_gradient() put aside.
  void drop_kept_gradient();

  bool has_kept_gradient() const {
    return kept_gradient_.defined();
  }

  /// Forgets the stashed gradient and what a backward pass left that did not come to its end.
  void drop_gradients();

  /// Puts the stashed gradient plus `addition` (may be undefined) on the tensor. Pre: sharded.
  void put_sharded_gradient(const at::Tensor& addition);

 private:
  at::Tensor part_of(const at::Tensor& whole, std::int64_t rank) const;
  std::vector<at::Tensor> parts_of(const at::Tensor& whole) const;

  ShardedParameter spec_;
  std::vector<ChunkRange> ranges_; ///< of every rank, on spec_.dim
  std::int64_t rank_;
  at::Tensor parameter_;
  at::Tensor shard_;
  at::Tensor whole_tensor_; ///< its storage has no bytes while sharded
  at::Tensor stashed_gradient_;
  at::Tensor kept_gradient_; ///< whole, of passes that were not reduced
  bool whole_ = false;
  bool unsharded_ = false;
  bool stashed_ = false;
};

} // namespace tieshard

// tieshard/runtime/fsdp/fsdp_param_group.h
//
// The parameters of one unit: gathered in one collective, their gradients reduced in one.
//
// Flow:   fsdp_state -> [this] -> fsdp_param, mesh/collectives
// Source: FSDP2's FSDPParamGroup (unshard, reshard, pre_backward, post_backward) and foreach_all_gather,
// foreach_reduce.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/runtime/fsdp/fsdp_param.h"
#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/fsdp/post_forward_shards.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

class FsdpParamGroup {
 public:
  /// @param name        fqn of the unit; "" for the root
  /// @param parameters  in registration order
  /// @param mesh        gradients are summed over all of its axes, parameters gathered from dp_shard
  /// @param options     those of this unit: per_unit has been looked up
  /// @param neighbours  the ranks of an integer reshard_after_forward; nothing otherwise
  FsdpParamGroup(std::string name,
                 std::vector<FsdpParam> parameters,
                 const DeviceMesh& mesh,
                 const FullyShardOptions& options,
                 const std::optional<DeviceMesh>& neighbours = {});

  /// Takes one more parameter. Pre: resharded.
  void add(FsdpParam parameter);

  const std::string& name() const noexcept {
    return name_;
  }
  const std::vector<FsdpParam>& parameters() const noexcept {
    return parameters_;
  }
  std::vector<FsdpParam>& parameters() noexcept {
    return parameters_;
  }
  /// Whole, or being gathered.
  bool unsharded() const noexcept {
    return unsharded_ || gather_under_way_ != nullptr;
  }
  const MixedPrecisionPolicy& mp_policy() const noexcept {
    return mp_policy_;
  }
  bool activation_checkpointing() const noexcept {
    return activation_checkpointing_;
  }
  /// Whether any parameter requires a gradient.
  bool trainable() const;

  /// Before the unit's forward: as unshard(), from all ranks.
  void pre_forward();

  /// Begins what pre_forward(), or unshard() before a backward, will wait for. Where the mesh's backend cannot gather
  /// while the caller computes (shared memory), it is gathered when this returns.
  void prefetch_forward();
  void prefetch();

  /// After it. `has_backward` false: reshards; true: what reshard_after_forward says.
  void post_forward(bool has_backward);

  /// Makes the parameters whole. A collective unless they are; among the neighbours while an integer
  /// reshard_after_forward keeps parts. Every rank must call it.
  /// @throws UsageError wrong-state, before anything is changed, when a parameter was given other storage
  void unshard();

  /// Makes them shards again and frees the whole ones. No communication.
  void reshard();

  /// Before the unit's backward: whole parameters, and a clean place for their gradients.
  void pre_backward();

  /// After it: the gradients are summed over the ranks (reduce_scatter over those that share a copy, all_reduce over
  /// the copies), divided, and this rank's part is added to what the parameter
  /// had; then reshards. A collective; every rank must call it. Does nothing without a pre_backward before.
  /// Without gradient sync the whole gradients are kept instead, and there is no communication. Frozen parameters have
  /// no part in it; when all are, there is no communication either.
  ///
  /// A parameter that got a gradient on no rank keeps what it had (mostly none); on some ranks: the others count as
  /// zero.
  void post_backward();

  /// At the end of a backward pass: post_backward(), also for gradients that were kept of earlier passes and that this
  /// one did not reach.
  void end_of_pass();

  /// Whether post_backward() reduces. @param keep_whole  without: leave the parameters whole after it
  void set_gradient_sync(bool sync, bool keep_whole);

  /// True when whole gradients are kept that no backward pass has reduced yet.
  bool has_unreduced_gradients() const;

  /// Forgets those.
  void drop_kept_gradients();

  /// After a backward pass that an exception ended: shards again, without gradients. That the pass may have come
  /// further in this unit than in another makes no difference, nor that there were gradients before it (the caller may
  /// have zeroed them meanwhile): no step can use half of a pass. No communication.
  void abandon_backward();

 private:
  void choose_dtypes();
  void start_gather();
  void release();
  void reduce();
  void finish_alone();
  at::ScalarType sent_dtype() const;
  void keep_gradients();
  void put_back_gradients();

  std::string name_;
  std::vector<FsdpParam> parameters_;
  DeviceMesh mesh_;     ///< the ranks that share one copy
  DeviceMesh replicas_; ///< those that hold the same shards
  at::ScalarType compute_dtype_ = at::ScalarType::Float;
  at::ScalarType reduce_dtype_ = at::ScalarType::Float;
  double divide_factor_ = 1.0;
  MixedPrecisionPolicy mp_policy_;
  bool activation_checkpointing_ = false;
  bool keeps_after_forward_ = false;
  std::optional<PostForwardShards> post_forward_shards_;
  bool gradient_sync_ = true;
  bool holds_passes_ = false;              ///< a pass without gradient sync was not reduced yet
  bool keeps_after_backward_ = false;      ///< only without gradient sync
  bool gradients_are_stashed_ = false;     ///< while whole between two backward passes
  std::function<void()> gather_under_way_; ///< waits for it; empty when there is none
  bool unsharded_ = false;
  bool in_backward_ = false;
};

} // namespace tieshard

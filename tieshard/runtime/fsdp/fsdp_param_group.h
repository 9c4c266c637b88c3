// tieshard/runtime/fsdp/fsdp_param_group.h
//
// The parameters of one unit: gathered in one collective, their gradients reduced in one.
//
// Flow:   fsdp_state -> [this] -> fsdp_param, mesh/collectives
// Source: FSDP2's FSDPParamGroup (unshard, reshard, pre_backward, post_backward) and foreach_all_gather,
// foreach_reduce.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/runtime/fsdp/fsdp_param.h"
#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

class FsdpParamGroup {
 public:
  /// @param name        fqn of the unit; "" for the root
  /// @param parameters  in registration order
  FsdpParamGroup(std::string name,
                 std::vector<FsdpParam> parameters,
                 DeviceMesh mesh,
                 const FullyShardOptions& options);

  const std::string& name() const noexcept {
    return name_;
  }
  const std::vector<FsdpParam>& parameters() const noexcept {
    return parameters_;
  }
  std::vector<FsdpParam>& parameters() noexcept {
    return parameters_;
  }
  bool unsharded() const noexcept {
    return unsharded_;
  }

  /// Makes the parameters whole. A collective unless they are. Every rank must call it.
  /// @throws UsageError wrong-state, before anything is changed, when a parameter was given other storage
  void unshard();

  /// Makes them shards again and frees the whole ones. No communication.
  void reshard();

  /// Before the unit's backward: whole parameters, and a clean place for their gradients.
  void pre_backward();

  /// After it: the gradients are summed over the ranks, divided, and this rank's part is added to what the parameter
  /// had; then reshards. A collective; every rank must call it. Does nothing without a pre_backward before.
  ///
  /// A parameter that got a gradient on no rank keeps what it had (mostly none); on some ranks: the others count as
  /// zero.
  void post_backward();

  /// After a backward pass that an exception ended: shards again, without gradients. That the pass may have come
  /// further in this unit than in another makes no difference, nor that there were gradients before it (the caller may
  /// have zeroed them meanwhile): no step can use half of a pass. No communication.
  void abandon_backward();

 private:
  void gather();
  void reduce();
  void finish_alone();
  at::ScalarType sent_dtype() const;

  std::string name_;
  std::vector<FsdpParam> parameters_;
  DeviceMesh mesh_;
  at::ScalarType compute_dtype_ = at::ScalarType::Float;
  at::ScalarType reduce_dtype_ = at::ScalarType::Float;
  double divide_factor_ = 1.0;
  bool unsharded_ = false;
  bool in_backward_ = false;
};

} // namespace tieshard

// tieshard/runtime/fsdp/post_forward_shards.h
//
// What a unit keeps between forward and backward when reshard_after_forward is a number N: one Nth of its whole
// parameters, so that the backward gathers from N neighbours instead of from all ranks.
//
// Flow:   fsdp_param_group -> [this] -> mesh/collectives
// Source: FSDP2's post-forward mesh. The parts here are of the unit's elements in a row, whatever the dim of the plan.

#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/fsdp/fsdp_param.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

class PostForwardShards {
 public:
  /// @param neighbours  the N ranks that hold the parts together
  explicit PostForwardShards(DeviceMesh neighbours);

  /// True from keep() to drop().
  bool held() const {
    return part_.defined();
  }

  /// Copies this rank's part. Pre: the parameters are unsharded.
  void keep(const std::vector<FsdpParam>& parameters);

  /// Fills the whole tensors. A collective among the neighbours. Pre: held(), and their bytes are allocated.
  void gather_into(std::vector<FsdpParam>& parameters, const std::string& unit) const;

  void drop() {
    part_.reset();
  }

 private:
  DeviceMesh neighbours_;
  at::Tensor part_; ///< [ceil(bytes / N)]
};

} // namespace tieshard

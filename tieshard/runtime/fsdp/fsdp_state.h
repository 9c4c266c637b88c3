// tieshard/runtime/fsdp/fsdp_state.h
//
// The sharded state of one module: its units, and what happens around each of them in forward and backward.
//
// Flow:   fully_shard -> [this] -> fsdp_param_group; asked by optim, state, train
// Source: FSDP2's FSDPState (pre-forward, post-forward, pre-backward hooks, root post-backward callback).
//
// Note: [Backward] LibTorch has no module hooks. run() is the forward half. The backward half hangs on autograd: a hook
// on
//       the unit's output unshards, a node on its input reduces. Nodes of one graph run in falling order of creation,
//       and gradient accumulation before all of them, so when the input's node runs, the unit's gradients are complete.
//       Units whose input needs no gradient (the root) are finished by a callback at the end of the backward pass.
// Note: [Broken backward] The callback does not run when an exception ends the pass. The next forward, backward or
//       reshard() sees that by the number of the pass and drops every gradient: none, rather than those of half a pass.

#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/fsdp_param_group.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/unit_runner.h"

namespace tieshard {

class FsdpState : public UnitRunner, public std::enable_shared_from_this<FsdpState> {
 public:
  /// Use fully_shard(). @param groups  the root's first; keyed by module in `group_of`
  FsdpState(torch::nn::Module& root,
            DeviceMesh mesh,
            ShardPlan plan,
            std::vector<std::unique_ptr<FsdpParamGroup>> groups,
            std::unordered_map<const torch::nn::Module*, FsdpParamGroup*> group_of,
            const FullyShardOptions& options);

  /// Forward of one unit: unshard, run, reshard. A module that is no unit is called through. Every rank must call it,
  /// in the same order, a rank without data of its own too. An exception of `forward` passes through; the unit is
  /// resharded then.
  at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) override;

  /// Makes every parameter this rank's shard again, whatever ran before. No communication. The optimizer guard calls
  /// it.
  void reshard();

  /// Makes every parameter whole, for looking at or changing the module by hand; reshard() keeps none of the changes.
  /// A collective; every rank must call it.
  void unshard();

  const DeviceMesh& mesh() const noexcept {
    return mesh_;
  }
  const ShardPlan& plan() const noexcept {
    return plan_;
  }
  torch::nn::Module& root() const noexcept {
    return root_;
  }
  const std::vector<std::unique_ptr<FsdpParamGroup>>& groups() const noexcept {
    return groups_;
  }

  /// Every managed parameter, each once, in registration order.
  std::vector<const FsdpParam*> managed() const;

 private:
  friend class PostBackwardNode;
  static constexpr int kNoPass = -1; ///< as autograd numbers the absence of one

  at::Tensor compute(FsdpParamGroup& group, bool is_root, const at::Tensor& input, const Forward& forward);
  void pre_backward(FsdpParamGroup& group);
  void finish_backward();
  void abandon_broken_backward();
  at::Tensor attach_post_backward(const at::Tensor& input, FsdpParamGroup& group);

  torch::nn::Module& root_;
  DeviceMesh mesh_;
  ShardPlan plan_;
  std::vector<std::unique_ptr<FsdpParamGroup>> groups_;
  std::unordered_map<const torch::nn::Module*, FsdpParamGroup*> group_of_;
  FullyShardOptions options_;
  int backward_pass_ = kNoPass; ///< autograd's number of the pass whose end finish_backward() waits for
};

} // namespace tieshard

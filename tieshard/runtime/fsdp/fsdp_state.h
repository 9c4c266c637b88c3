// tieshard/runtime/fsdp/fsdp_state.h
//
// The sharded state of one module: its units, and what happens around each of them in forward and backward.
//
// Flow:   fully_shard -> [this] -> fsdp_param_group; asked by optim, state, train
// Source: FSDP2's FSDPState (pre-forward, post-forward, pre-backward hooks, root post-backward callback).
//
// Note: [Backward] LibTorch has no module hooks. run() is the forward half. The backward half hangs on autograd: a hook
//       on each of the unit's outputs unshards, a node on its inputs reduces (post_backward_node.h). Units whose inputs
//       need no gradient (the root) are finished by a callback at the end of the backward pass.
// Note: [Broken backward] The callback does not run when an exception ends the pass; autograd drops it. The next
//       forward, backward or reshard() sees that it is gone and drops every gradient: none, rather than those of half a
//       pass.

#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/fsdp_param_group.h"
#include "tieshard/runtime/fsdp/unit_order.h"
#include "tieshard/runtime/fsdp/unit_rounds.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/models/unit_runner.h"

namespace tieshard {

class FsdpState : public UnitRunner, public std::enable_shared_from_this<FsdpState> {
 public:
  /// Use fully_shard(). @param groups  of `units`, in the same order: the root's first
  FsdpState(torch::nn::Module& root,
            const DeviceMesh& mesh,
            ShardPlan plan,
            const std::vector<UnitModule>& units,
            std::vector<std::unique_ptr<FsdpParamGroup>> groups,
            const FullyShardOptions& options,
            std::vector<Diagnostic> findings);

  /// Forward of one unit: unshard, run, reshard. A module that is no unit is called through. Of a unit of several
  /// modules the first that runs unshards, and the last reshards; if some do not run, the end of the root's forward, or
  /// reshard(). Every rank must call it,
  /// in the same order, a rank without data of its own too. An exception of `forward` passes through; the unit is
  /// resharded then.
  /// @throws UsageError wrong-state at the end of the root's forward when a unit did not run in it (see
  ///         FullyShardOptions::allow_idle_units); when a unit runs inside itself, changes an input in place that a
  ///         gradient goes through, or has an output that shares memory with its parameters
  at::Tensor run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) override;
  std::vector<at::Tensor> run_tensors(torch::nn::Module& unit,
                                      const std::vector<at::Tensor>& inputs,
                                      const TensorsForward& forward) override;

  /// Takes parameters into management that were registered in the module after fully_shard: whole and equal on every
  /// rank, in a module inside some unit. They lie where the plan's extension puts them, and are sharded and reduced
  /// with their unit from now on; an optimizer that is to step them is built afterwards. Every rank must call it.
  /// @param added  names and whole shapes
  /// @throws UsageError unknown-parameter (the module has no such name, or the plan has it), wrong-state (no unit holds
  ///         it)
  void manage_added(const ParameterTable& added);

  /// Makes every parameter this rank's shard again, whatever ran before. No communication. The optimizer guard calls
  /// it.
  void reshard();

  /// Makes every parameter whole, for looking at the module by hand. What is changed then is lost at reshard(), but for
  /// parameters that are whole anyway (0-dim ones; on one rank, without mixed precision, all): change shards, after
  /// reshard(). Gradients of a backward outside run() are not reduced; a guarded optimizer refuses them. A collective;
  /// every rank must call it.
  void unshard();

  /// Gradient accumulation without communication: while false, backward passes keep the whole gradients on this rank,
  /// in the reduce dtype, and add up; the first pass with true reduces them with its own. What is kept is no `.grad`
  /// yet: zero_grad() does not see it, and a guarded optimizer refuses to step. Every rank must call it alike.
  void set_requires_gradient_sync(bool sync);

  /// False says that another backward follows this one before anything is stepped: units that the pass did not use
  /// stay as they are at its end, and, without gradient sync, those that reshard_after_forward keeps whole (the root)
  /// stay whole, which spares a gather. Set true before the last one. Every rank must call it alike.
  void set_is_last_backward(bool last);

  /// Gives up the gradients that passes without gradient sync kept, as a step that is skipped has to. Every rank must
  /// call it alike. No communication.
  void drop_unreduced_gradients();

  /// @throws UsageError wrong-state when gradients are kept that no backward pass with gradient sync has reduced
  void require_reduced_gradients() const;

  /// The ranks that share one copy of the model (axis dp_shard): those that the plan is for.
  const DeviceMesh& mesh() const noexcept {
    return mesh_;
  }
  /// All ranks: the same, or the grid of HSDP.
  const DeviceMesh& world() const noexcept {
    return world_;
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

  /// Parameters of the module that are not managed, each named: a warning for those that no unit holds, a note for
  /// those that were ignored on purpose.
  const std::vector<Diagnostic>& findings() const noexcept {
    return findings_;
  }

  /// Every managed parameter, each once, in registration order.
  std::vector<const FsdpParam*> managed() const;

 private:
  static constexpr int kNoPass = -1; ///< as autograd numbers the absence of one
  struct BackwardPass {};            ///< lives as long as autograd may call finish_backward()

  std::vector<at::Tensor> run_unit(const torch::nn::Module& unit,
                                   FsdpParamGroup& group,
                                   const std::vector<at::Tensor>& inputs,
                                   const TensorsForward& forward);
  std::vector<at::Tensor> compute(FsdpParamGroup& group,
                                  const std::vector<at::Tensor>& inputs,
                                  const TensorsForward& forward);
  bool watch_outputs(FsdpParamGroup& group, const std::vector<at::Tensor>& outputs);
  bool is_root(const FsdpParamGroup& group) const {
    return &group == groups_.front().get();
  }
  void enter_forward(const torch::nn::Module& unit, FsdpParamGroup& group);
  void abandon_forward(const FsdpParamGroup& failed);
  void leave_root_forward();
  void require_all_ran() const;
  void update_gradient_sync();
  std::shared_ptr<void> hold_recomputing();
  void pre_backward(FsdpParamGroup& group);
  void finish_backward();
  void abandon_broken_backward();
  bool recomputes() const;
  std::string where(const FsdpParamGroup& group) const;

  torch::nn::Module& root_;
  DeviceMesh world_;
  DeviceMesh mesh_;
  ShardPlan plan_;
  std::vector<UnitModule> units_; ///< of groups_, in the same order
  std::vector<std::unique_ptr<FsdpParamGroup>> groups_;
  UnitRounds rounds_;
  FullyShardOptions options_;
  std::vector<Diagnostic> findings_;
  bool root_is_unit_ = false;                        ///< every parameter of the module belongs to some unit
  std::unordered_set<const torch::nn::Module*> ran_; ///< in the root's forward that runs now
  UnitOrder order_;
  int recomputing_ = 0; ///< units whose forward a backward pass is running again
  bool gradient_sync_ = true;
  bool last_backward_ = true;
  bool in_backward_ = false; ///< finish_backward() is to come, if no exception ends the pass
  std::weak_ptr<const BackwardPass> backward_pass_;
  std::unordered_set<const torch::nn::Module*> running_; ///< from the outermost run to the innermost
};

} // namespace tieshard

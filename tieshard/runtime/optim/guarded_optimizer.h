// tieshard/runtime/optim/guarded_optimizer.h
//
// A torch optimizer behind its guard: what OptimizerGuard::build and adopt return.
//
// Flow: optimizer_guard -> [this] -> torch::optim

#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/optim/optimizer_state.h"

namespace tieshard {

/// Owns an optimizer; checks what it holds whenever that can have changed.
template <typename Optimizer>
class GuardedOptimizer {
 public:
  GuardedOptimizer(OptimizerGuard guard, std::unique_ptr<Optimizer> optimizer)
      : guard_(std::move(guard)), optimizer_(std::move(optimizer)) {}

  /// Steps on this rank's shards. Looks every parameter of the optimizer and of the module up first (a hash look-up
  /// each; docs/benchmarks.md has its cost), so that a group added behind the guard's back, a parameter unfrozen,
  /// replaced or registered since is refused before it does harm.
  /// @throws UsageError optimizer-parameter; PeerError file-changed when a mapped weights file was cut
  void step() {
    require_mappings_intact();
    guard_.reshard();
    guard_.require_admissible(*optimizer_);
    make_missing_state(*optimizer_);
    optimizer_->step();
  }

  void zero_grad(bool set_to_none = true) {
    optimizer_->zero_grad(set_to_none);
  }

  /// @throws UsageError optimizer-parameter; the optimizer is unchanged then
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    std::vector<at::Tensor> parameters = held();
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    guard_.assert_all_managed(parameters);
    optimizer_->add_param_group(group);
  }

  /// Takes parameters that were frozen since (requires_grad is false) out of their groups, with the state kept of them.
  void drop_frozen() {
    OptimizerGuard::drop_frozen(*optimizer_);
  }

  /// Every slot, told apart.
  std::vector<SlotReport> report() const {
    return guard_.report(*optimizer_);
  }

  /// The optimizer itself, for options and state. What is added to it is checked at the next step.
  Optimizer& raw() noexcept {
    return *optimizer_;
  }

  const OptimizerGuard& guard() const noexcept {
    return guard_;
  }

 private:
  std::vector<at::Tensor> held() const {
    std::vector<at::Tensor> parameters;
    for (const auto& group : optimizer_->param_groups()) {
      parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    }
    return parameters;
  }

  OptimizerGuard guard_;
  std::unique_ptr<Optimizer> optimizer_;
};

} // namespace tieshard

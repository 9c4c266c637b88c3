// tieshard/runtime/optim/optimizer_guard.h
//
// No optimizer steps on a parameter that it must not: stale, foreign, frozen, listed twice or unmanaged.
//
// Flow:   fsdp_state, any module -> [this] -> guarded_optimizer -> train
// Source: accelerate #3821 ("A parameter in the optimizer couldn't be switched to its sharded version"); the write-up's
//         OptimizerGuard (register_managed, assert_all_managed, build).

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/optim/slot_report.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {

template <typename Optimizer>
class GuardedOptimizer;

/// Cheap to copy into the optimizer that it guards. Every check lists all offenders in one error, each with its group,
/// the reason and the remedy. No check communicates; ranks that do the same get the same answer.
class OptimizerGuard {
 public:
  /// Guards a sharded module: its managed parameters are those of `state`, also those that add_lora(*state, ...) adds
  /// later.
  explicit OptimizerGuard(std::shared_ptr<FsdpState> state);

  /// Guards one of our models. @throws UsageError not-sharded
  explicit OptimizerGuard(const LanguageModel& model);

  /// Admits further parameters of `module` (an unsharded module on one rank, say), under their fqns.
  void register_managed(const std::vector<NamedTensor>& parameters);

  /// Checks parameters before an optimizer takes them.
  /// @throws UsageError optimizer-parameter
  void assert_all_managed(const std::vector<at::Tensor>& parameters) const;

  /// Builds an optimizer over every trainable managed parameter, each once. Parameters are resharded first: some
  /// optimizers (Adagrad) make their state when they are made.
  ///
  /// @throws UsageError optimizer-parameter when the module has trainable parameters that no unit manages (they would
  ///         never be trained, or drift apart between ranks)
  template <typename Optimizer, typename Options>
  GuardedOptimizer<Optimizer> build(Options options) const {
    reshard();
    const std::vector<at::Tensor> parameters = trainable();
    return GuardedOptimizer<Optimizer>(*this, std::make_unique<Optimizer>(parameters, std::move(options)));
  }

  /// Takes an optimizer that exists, built before fully_shard or after; what switch_to_sharded does is done.
  /// @throws UsageError optimizer-parameter, also when it leaves a trainable managed parameter out; the optimizer stays
  ///         the caller's then, unchanged
  template <typename Optimizer>
  GuardedOptimizer<Optimizer> adopt(std::unique_ptr<Optimizer>&& optimizer,
                                    const std::vector<NamedTensor>& originals = {}) const {
    take_over(*optimizer, originals);
    return GuardedOptimizer<Optimizer>(*this, std::move(optimizer));
  }

  /// Takes parameters that require no gradient out of their groups, with the state kept of them; before adopt(), say.
  static void drop_frozen(torch::optim::Optimizer& optimizer);

  /// Original parameters become the managed ones, and state from before fully_shard becomes this rank's part of it:
  /// moments are cut as their parameter is, step counts stay. An optimizer that was built and stepped before goes on
  /// with the numbers of one that was never sharded. What is sharded already stays as it is.
  ///
  /// @param originals  what the optimizer was built over (named_parameters(module) at that time), where the module has
  ///                   other tensors under those names since
  /// @throws UsageError optimizer-parameter for state that cannot be cut, or of several weights that are one now; the
  ///         optimizer is unchanged then
  void switch_to_sharded(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& originals = {}) const;

  /// Every slot of an optimizer, told apart, with its identity before and after sharding (to_text() prints it).
  std::vector<SlotReport> report(const torch::optim::Optimizer& optimizer) const;

  /// Each slot is managed, its gradient (if any) is the shard's, and each trainable parameter of the module is in
  /// exactly one group. Pre: resharded.
  /// @throws UsageError optimizer-parameter
  void require_admissible(const torch::optim::Optimizer& optimizer) const;

  /// Trainable managed parameters that the module has, in registration order. @throws UsageError optimizer-parameter as
  /// build() does
  std::vector<at::Tensor> trainable() const;

  /// Every parameter becomes its shard again; what an optimizer may step. No communication.
  /// @throws UsageError wrong-state when gradients were kept without gradient sync and not reduced since
  void reshard() const;

 private:
  using Groups = std::vector<std::vector<at::Tensor>>;
  using Held = std::unordered_set<const c10::TensorImpl*>;
  struct ModuleNames;

  struct Managed {
    std::unordered_map<const c10::TensorImpl*, std::string> fqns;
    std::unordered_map<const c10::TensorImpl*, const FsdpParam*> sharded;
    std::vector<NamedTensor> order; ///< the same as fqns, in registration order; keeps them alive
    std::size_t of_state = 0;
  };

  const Managed& managed() const;
  bool is_gone(const c10::TensorImpl* impl, const ModuleNames& module) const;
  std::vector<SlotReport> inspect(const Groups& groups, const ModuleNames& module) const;
  std::vector<SlotReport> inadmissible(const Groups& groups) const;
  std::vector<SlotReport> unmanaged(const Held& held) const;
  std::vector<SlotReport> left_out(const Held& held, const ModuleNames& module) const;
  void take_over(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& originals) const;
  [[noreturn]] void refuse(const std::vector<SlotReport>& offenders) const;

  std::shared_ptr<FsdpState> state_;
  std::vector<NamedTensor> registered_;
  mutable std::optional<Managed> managed_; ///< as of the state's last look; managed() keeps it true
};

} // namespace tieshard

#include "tieshard/runtime/optim/guarded_optimizer.h"

// tieshard/runtime/optim/optimizer_guard.h
//
// No optimizer steps on a parameter that it must not: stale, foreign, frozen, listed twice or unmanaged.
//
// Flow:   fsdp_state, any module -> [this] -> guarded_optimizer -> train
// Source: accelerate #3821 ("A parameter in the optimizer couldn't be switched to its sharded version"); the write-up's
//         OptimizerGuard (register_managed, assert_all_managed, build).

#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/models/causal_lm.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {

template <typename Optimizer>
class GuardedOptimizer;

/// What a parameter in an optimizer is.
enum class SlotKind {
  kManaged,    ///< owned by fully_shard, trainable, once
  kFrozen,     ///< managed, but requires no gradient
  kDuplicate,  ///< listed before, under this or another name: it would be stepped twice
  kStale,      ///< was the module's parameter; the module has another tensor under that name now
  kUnmanaged,  ///< the module's, but outside all units: left out by a partial wrap, or added after fully_shard
  kForeign,    ///< not of this module
  kWholeState, ///< managed, but the optimizer's state of it is not shaped as the shard: it stepped before fully_shard
};

std::string_view id(SlotKind kind);

/// One entry of an optimizer's parameter groups.
struct SlotReport {
  std::string name; ///< fqn; "(unknown)" with the shape for a foreign tensor
  std::size_t group = 0;
  std::size_t slot = 0;
  SlotKind kind = SlotKind::kManaged;
};

class OptimizerGuard {
 public:
  /// Guards a sharded module: its managed parameters are those of `state`.
  explicit OptimizerGuard(std::shared_ptr<FsdpState> state);

  /// Guards one of our models. @throws UsageError not-sharded
  explicit OptimizerGuard(const CausalLm& model);

  /// Admits further parameters of `module` (an unsharded module on one rank, say), under their fqns.
  void register_managed(const std::vector<NamedTensor>& parameters);

  /// Checks parameters before an optimizer takes them.
  /// @throws UsageError optimizer-parameter, one error that lists every offender with its group, reason and remedy
  void assert_all_managed(const std::vector<at::Tensor>& parameters) const;

  /// Builds an optimizer over every trainable managed parameter, each once.
  ///
  /// @throws UsageError optimizer-parameter when the module has trainable parameters that no unit manages (they would
  /// never
  ///         be trained, or drift apart between ranks)
  template <typename Optimizer, typename Options>
  GuardedOptimizer<Optimizer> build(Options options) const {
    const std::vector<at::Tensor> parameters = trainable();
    return GuardedOptimizer<Optimizer>(*this, std::make_unique<Optimizer>(parameters, std::move(options)));
  }

  /// Takes an optimizer that exists, built before fully_shard or after.
  /// @throws UsageError optimizer-parameter, also when it leaves a trainable managed parameter out, or stepped before
  ///         fully_shard on what is now a shard
  template <typename Optimizer>
  GuardedOptimizer<Optimizer> adopt(std::unique_ptr<Optimizer> optimizer) const {
    reshard();
    require_admissible(*optimizer, /*complete=*/true);
    return GuardedOptimizer<Optimizer>(*this, std::move(optimizer));
  }

  /// Every slot of an optimizer, told apart.
  std::vector<SlotReport> report(const torch::optim::Optimizer& optimizer) const;

  /// Pre: resharded, since state is compared with the shards.
  /// @param complete  also refuse when a trainable managed parameter is in no group
  /// @throws UsageError optimizer-parameter
  void require_admissible(const torch::optim::Optimizer& optimizer, bool complete) const;

  /// Trainable managed parameters in registration order. @throws UsageError optimizer-parameter as build() does
  std::vector<at::Tensor> trainable() const;

  /// Every parameter becomes its shard again; what an optimizer may step. No communication.
  /// @throws UsageError wrong-state when gradients were kept without gradient sync and not reduced since
  void reshard() const;

 private:
  std::vector<SlotReport> inspect(const std::vector<std::vector<at::Tensor>>& groups) const;
  std::vector<SlotReport> with_whole_state(const torch::optim::Optimizer& optimizer) const;
  [[noreturn]] void refuse(const std::vector<SlotReport>& offenders) const;
  std::vector<SlotReport> left_out(const std::unordered_set<const c10::TensorImpl*>& held) const;

  std::shared_ptr<FsdpState> state_;
  std::unordered_map<const c10::TensorImpl*, std::string> managed_; ///< fqn of each managed tensor
  std::vector<NamedTensor> order_; ///< the same in registration order; keeps them alive
};

} // namespace tieshard

#include "tieshard/runtime/optim/guarded_optimizer.h"

// tieshard/runtime/optim/param_groups.h
//
// An optimizer whose groups are those that rules on names ask for, with rates that follow a schedule.
//
// Flow: core/optim/param_group_rules, optimizer_guard -> [this] -> train
//
// Note: LibTorch merges a group's options with the defaults and takes a value that equals its constructor's for one
//       that was not given: `weight_decay(0)` of an SGD group becomes the default's 0.01. So options are set here once
//       the groups are there.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tieshard/core/optim/param_group_rules.h"
#include "tieshard/runtime/optim/bf16_options.h"
#include "tieshard/runtime/optim/optimizer_guard.h"

namespace tieshard {

struct ParamGroup {
  std::vector<at::Tensor> parameters;
  std::optional<double> lr{};           ///< instead of the optimizer's
  std::optional<double> weight_decay{}; ///< instead of the optimizer's
};

/// The trainable managed parameters, each in one group: a group for each rule, in their order, and one of those that no
/// rule takes, unless there are none. A pattern may match any name of a tied parameter. The same on every rank.
/// @throws InputError unknown-parameter (see assign_param_groups); UsageError optimizer-parameter as
///         OptimizerGuard::trainable does
std::vector<ParamGroup> make_param_groups(const OptimizerGuard& guard,
                                          const torch::nn::Module& module,
                                          const std::vector<ParamGroupRule>& rules);

/// Builds a FusedAdamW, FusedSgd or Lion over `groups`; OptimizerGuard::adopt takes it.
template <typename Optimizer, typename Options>
std::unique_ptr<Optimizer> build_with_groups(const std::vector<ParamGroup>& groups,
                                             const Options& options,
                                             const Bf16Options& bf16 = {}) {
  std::vector<torch::optim::OptimizerParamGroup> taken;
  for (const ParamGroup& group : groups) {
    taken.emplace_back(group.parameters);
  }
  auto optimizer = std::make_unique<Optimizer>(taken, options, bf16);
  for (std::size_t index = 0; index < groups.size(); ++index) {
    auto own = std::make_unique<Options>(options);
    own->lr(groups[index].lr.value_or(options.lr()));
    own->weight_decay(groups[index].weight_decay.value_or(options.weight_decay()));
    optimizer->param_groups()[index].set_options(std::move(own));
  }
  return optimizer;
}

/// The rates that an optimizer's groups were given, as the base of a schedule.
class GroupRates {
 public:
  explicit GroupRates(const torch::optim::Optimizer& optimizer);

  /// Each group's rate becomes `factor` times its base. Pre: the groups are those of the constructor
  void apply(torch::optim::Optimizer& optimizer, double factor) const;

 private:
  std::vector<double> base_;
};

} // namespace tieshard

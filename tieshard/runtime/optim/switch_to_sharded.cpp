#include "tieshard/runtime/optim/switch_to_sharded.h"

#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/optim/optimizer_state.h"

namespace tieshard {
namespace {

/// Managed parameters by object and by each of their names.
class ManagedParameters {
 public:
  ManagedParameters(const FsdpState& state, const std::vector<NamedTensor>& originals) {
    for (const FsdpParam* parameter : state.managed()) {
      by_tensor_.emplace(parameter->parameter().unsafeGetTensorImpl(), parameter);
    }
    for (const NamedTensor& named : named_parameters(state.root())) {
      if (const FsdpParam* parameter = find(named.tensor); parameter != nullptr) {
        by_name_.emplace(named.fqn, parameter);
      }
    }
    for (const NamedTensor& original : originals) {
      const auto found = by_name_.find(original.fqn);
      if (found != by_name_.end()) {
        by_original_.emplace(original.tensor.unsafeGetTensorImpl(), Original{original.fqn, found->second});
      }
    }
  }

  const FsdpParam* find(const at::Tensor& tensor) const {
    const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
    return found == by_tensor_.end() ? nullptr : found->second;
  }

  /// What a tensor that is the module's no more was, by the name it had; null for any other.
  struct Original {
    std::string fqn;
    const FsdpParam* parameter = nullptr;
  };
  const Original* find_original(const at::Tensor& tensor) const {
    const auto found = by_original_.find(tensor.unsafeGetTensorImpl());
    return found == by_original_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<const c10::TensorImpl*, const FsdpParam*> by_tensor_;
  std::unordered_map<std::string, const FsdpParam*> by_name_;
  std::unordered_map<const c10::TensorImpl*, Original> by_original_;
};

/// Why the state cannot be cut; empty when it can, or is cut already.
std::string objection(const torch::optim::OptimizerParamState& kept, const FsdpParam& parameter) {
  const std::optional<std::vector<at::Tensor>> tensors = moments(kept);
  const Shape whole = parameter.spec().shape;
  const Shape local = parameter.shard().sizes().vec();
  if (!tensors) {
    return whole == local ? "" : "its class of state is not known (derive it from MomentState)";
  }
  for (const at::Tensor& moment : *tensors) {
    const Shape shape = moment.sizes().vec();
    if (shape != whole && shape != local) {
      return concat("expected ", to_string(whole), " or ", to_string(local), ", got ", to_string(shape));
    }
  }
  return "";
}

void plan_state(const torch::optim::OptimizerParamState& kept,
                const FsdpParam& parameter,
                SlotReport slot,
                SwitchPlan& plan) {
  slot.detail = objection(kept, parameter);
  if (!slot.detail.empty()) {
    plan.refused.push_back(std::move(slot));
    return;
  }
  for (const at::Tensor& moment : moments(kept).value_or(std::vector<at::Tensor>())) {
    if (moment.sizes() != parameter.shard().sizes()) {
      plan.cuts.push_back({moment, &parameter});
    }
  }
}

/// What an optimizer holds of one managed parameter: the parameter itself, and tensors that it is to replace.
struct Holding {
  std::set<const c10::TensorImpl*> tensors;
  std::vector<SlotReport> originals;
  bool has_state = false;
};

/// Weights that were several and are one now, with state: one state can go on, and which is not ours to choose.
void refuse_joined_state(const std::map<const FsdpParam*, Holding>& holdings, SwitchPlan& plan) {
  for (const auto& [parameter, holding] : holdings) {
    if (holding.tensors.size() < 2 || !holding.has_state) {
      continue;
    }
    for (SlotReport slot : holding.originals) {
      std::erase_if(plan.refused, [&](const SlotReport& refused) { return refused.held == slot.held; });
      slot.detail =
          concat("it was a weight of its own and is ",
                 parameter->fqn(),
                 " now, which the optimizer holds in another slot too, and of their states one would be lost; "
                 "take the slot that shall not go on out of its group, with its state");
      plan.refused.push_back(std::move(slot));
    }
  }
}

} // namespace

SwitchPlan plan_switch(const torch::optim::Optimizer& optimizer,
                       const FsdpState& state,
                       const std::vector<NamedTensor>& originals) {
  const ManagedParameters managed(state, originals);
  SwitchPlan plan;
  std::map<const FsdpParam*, Holding> holdings;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const std::vector<at::Tensor>& held = optimizer.param_groups()[group].params();
    for (std::size_t slot = 0; slot < held.size(); ++slot) {
      const FsdpParam* parameter = managed.find(held[slot]);
      const auto* const original = parameter == nullptr ? managed.find_original(held[slot]) : nullptr;
      if (parameter == nullptr && original == nullptr) {
        continue; // the guard says what it is
      }
      parameter = original == nullptr ? parameter : original->parameter;
      const SlotReport report{.name = original == nullptr ? parameter->fqn() : original->fqn,
                              .group = group,
                              .slot = slot,
                              .kind = SlotKind::kForeignState,
                              .held = held[slot].unsafeGetTensorImpl(),
                              .current = parameter->parameter().unsafeGetTensorImpl(),
                              .whole = parameter->spec().shape,
                              .local = held[slot].sizes().vec()};
      Holding& holding = holdings[parameter];
      holding.tensors.insert(report.held);
      if (original != nullptr) {
        plan.replacements.push_back({group, slot, held[slot], parameter->parameter()});
        holding.originals.push_back(report);
      }
      const auto kept = optimizer.state().find(held[slot].unsafeGetTensorImpl());
      if (kept != optimizer.state().end()) {
        holding.has_state = true;
        plan_state(*kept->second, *parameter, report, plan);
      }
    }
  }
  refuse_joined_state(holdings, plan);
  return plan;
}

void apply_switch(torch::optim::Optimizer& optimizer, const FsdpState& state, const SwitchPlan& plan) {
  const at::NoGradGuard no_grad;
  for (const SwitchPlan::Cut& cut : plan.cuts) {
    if (cut.moment.sizes() == cut.parameter->shard().sizes()) {
      continue; // an alias's, cut under the canonical name
    }
    const ShardedParameter& spec = cut.parameter->spec();
    const ChunkRange range = state.plan().range(spec, state.mesh().rank());
    at::Tensor part = cut.moment.narrow(spec.dim, range.offset, range.size).clone(at::MemoryFormat::Contiguous);
    at::Tensor(cut.moment).set_data(part.to(cut.parameter->shard().device()));
  }
  for (const SwitchPlan::Replacement& replacement : plan.replacements) {
    optimizer.param_groups()[replacement.group].params()[replacement.slot] = replacement.managed;
    const auto kept = optimizer.state().find(replacement.original.unsafeGetTensorImpl());
    if (kept != optimizer.state().end()) {
      auto moved = std::move(kept->second);
      optimizer.state().erase(kept);
      optimizer.state()[replacement.managed.unsafeGetTensorImpl()] = std::move(moved);
    }
  }
}

} // namespace tieshard

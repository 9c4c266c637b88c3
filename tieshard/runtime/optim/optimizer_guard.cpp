#include "tieshard/runtime/optim/optimizer_guard.h"

#include <algorithm>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/optim/optimizer_state.h"

namespace tieshard {
namespace {

std::shared_ptr<FsdpState> require_state(const CausalLm& model) {
  std::shared_ptr<FsdpState> state = sharded_state(model);
  if (state == nullptr) {
    throw UsageError({.code = Code::kNotSharded,
                      .what = "fully_shard has not been applied",
                      .fix = "call fully_shard(model, plan, mesh) before OptimizerGuard(model)"});
  }
  return state;
}

/// What is wrong with a kind of slot, and what to do about it.
std::string reason(SlotKind kind) {
  switch (kind) {
    case SlotKind::kManaged:
      return "managed and trainable, but in no group: it would never be trained; add it, or freeze it with "
             "set_requires_grad(false)";
    case SlotKind::kFrozen:
      return "frozen: requires_grad is false; leave it out, or set_requires_grad(true)";
    case SlotKind::kDuplicate:
      return "listed before, and would be stepped twice (LibTorch's parameters() lists a tied tensor once per name); "
             "use "
             "unique_parameters() or OptimizerGuard::build";
    case SlotKind::kStale:
      return "stale: the module has another tensor under this name now; build the optimizer after the module is "
             "complete";
    case SlotKind::kUnmanaged:
      return "not managed: no fully_shard unit owns it (a partial wrap left it out, or it was registered after); "
             "register it "
             "before fully_shard, inside a unit, or freeze it with set_requires_grad(false)";
    case SlotKind::kForeign:
      return "foreign: not a parameter of the sharded module; register it in the module before fully_shard";
    case SlotKind::kWholeState:
      return "its state has another shape than the shard: the optimizer stepped before fully_shard; build it before "
             "the first step, or after fully_shard";
  }
  return "";
}

} // namespace

std::string_view id(SlotKind kind) {
  switch (kind) {
    case SlotKind::kManaged:
      return "managed";
    case SlotKind::kFrozen:
      return "frozen";
    case SlotKind::kDuplicate:
      return "duplicate";
    case SlotKind::kStale:
      return "stale";
    case SlotKind::kUnmanaged:
      return "unmanaged";
    case SlotKind::kForeign:
      return "foreign";
    case SlotKind::kWholeState:
      return "whole-state";
  }
  return "unknown";
}

OptimizerGuard::OptimizerGuard(std::shared_ptr<FsdpState> state) : state_(std::move(state)) {
  std::vector<NamedTensor> named;
  for (const FsdpParam* parameter : state_->managed()) {
    named.push_back({parameter->fqn(), parameter->parameter()});
  }
  register_managed(named);
}

OptimizerGuard::OptimizerGuard(const CausalLm& model) : OptimizerGuard(require_state(model)) {}

void OptimizerGuard::register_managed(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& named : parameters) {
    if (managed_.emplace(named.tensor.unsafeGetTensorImpl(), named.fqn).second) {
      order_.push_back(named);
    }
  }
}

std::vector<SlotReport> OptimizerGuard::inspect(const std::vector<std::vector<at::Tensor>>& groups) const {
  std::unordered_map<const c10::TensorImpl*, std::string> module_name;
  std::unordered_map<std::string, const c10::TensorImpl*> module_tensor;
  for (const NamedTensor& named : named_parameters(state_->root())) {
    module_name.emplace(named.tensor.unsafeGetTensorImpl(), named.fqn);
    module_tensor.emplace(named.fqn, named.tensor.unsafeGetTensorImpl());
  }
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<SlotReport> slots;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t slot = 0; slot < groups[group].size(); ++slot) {
      const at::Tensor& tensor = groups[group][slot];
      const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
      const auto managed = managed_.find(impl);
      const auto named = module_name.find(impl);
      SlotReport report{
          .name = concat("(unknown), shape ", to_string(tensor.sizes().vec())), .group = group, .slot = slot};
      if (managed != managed_.end()) {
        report.name = managed->second;
        const auto current = module_tensor.find(report.name);
        const bool replaced = current != module_tensor.end() && current->second != impl;
        report.kind = replaced                    ? SlotKind::kStale
                      : !tensor.requires_grad()   ? SlotKind::kFrozen
                      : !seen.insert(impl).second ? SlotKind::kDuplicate
                                                  : SlotKind::kManaged;
      } else if (named != module_name.end()) {
        report.name = named->second;
        report.kind = SlotKind::kUnmanaged;
      } else {
        report.kind = SlotKind::kForeign;
      }
      slots.push_back(std::move(report));
    }
  }
  return slots;
}

void OptimizerGuard::refuse(const std::vector<SlotReport>& offenders) const {
  std::string where = state_->mesh().where();
  std::string why;
  for (const SlotReport& slot : offenders) {
    where += concat(", ", slot.name);
    const std::string place =
        slot.kind == SlotKind::kManaged ? "no group" : concat("group ", slot.group, ", slot ", slot.slot);
    why += concat(why.empty() ? "" : "\n         ", slot.name, " (", place, "): ", reason(slot.kind));
  }
  throw UsageError(
      {.code = Code::kOptimizerParameter,
       .what = "an optimizer holds parameters that it must not step, or lacks some that it must",
       .where = std::move(where),
       .why = std::move(why),
       .fix = "build it with OptimizerGuard(model).build<Optimizer>(options) after fully_shard; it takes each "
              "trainable managed parameter once"});
}

std::vector<SlotReport> OptimizerGuard::left_out(const std::unordered_set<const c10::TensorImpl*>& held) const {
  std::vector<SlotReport> missing;
  for (const NamedTensor& named : order_) {
    if (named.tensor.requires_grad() && !held.contains(named.tensor.unsafeGetTensorImpl())) {
      missing.push_back({.name = named.fqn, .kind = SlotKind::kManaged});
    }
  }
  return missing;
}

void OptimizerGuard::assert_all_managed(const std::vector<at::Tensor>& parameters) const {
  std::vector<SlotReport> slots = inspect({parameters});
  std::erase_if(slots, [](const SlotReport& slot) { return slot.kind == SlotKind::kManaged; });
  if (!slots.empty()) {
    refuse(slots);
  }
}

std::vector<SlotReport> OptimizerGuard::report(const torch::optim::Optimizer& optimizer) const {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& group : optimizer.param_groups()) {
    groups.push_back(group.params());
  }
  return inspect(groups);
}

std::vector<SlotReport> OptimizerGuard::with_whole_state(const torch::optim::Optimizer& optimizer) const {
  std::vector<SlotReport> offenders;
  for (SlotReport& slot : report(optimizer)) {
    const at::Tensor& parameter = optimizer.param_groups()[slot.group].params()[slot.slot];
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (slot.kind != SlotKind::kManaged || state == optimizer.state().end()) {
      continue;
    }
    const std::vector<at::Tensor> kept = moments(*state->second);
    if (std::ranges::any_of(kept, [&](const at::Tensor& moment) { return moment.sizes() != parameter.sizes(); })) {
      slot.kind = SlotKind::kWholeState;
      offenders.push_back(std::move(slot));
    }
  }
  return offenders;
}

void OptimizerGuard::require_admissible(const torch::optim::Optimizer& optimizer, bool complete) const {
  std::vector<SlotReport> offenders = report(optimizer);
  std::erase_if(offenders, [](const SlotReport& slot) { return slot.kind == SlotKind::kManaged; });
  if (complete) {
    std::unordered_set<const c10::TensorImpl*> held;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& tensor : group.params()) {
        held.insert(tensor.unsafeGetTensorImpl());
      }
    }
    for (const std::vector<SlotReport>& more : {left_out(held), with_whole_state(optimizer)}) {
      offenders.insert(offenders.end(), more.begin(), more.end());
    }
  }
  if (!offenders.empty()) {
    refuse(offenders);
  }
}

std::vector<at::Tensor> OptimizerGuard::trainable() const {
  std::vector<SlotReport> offenders;
  for (const NamedTensor& named : unique_parameters(state_->root())) {
    if (named.tensor.requires_grad() && !managed_.contains(named.tensor.unsafeGetTensorImpl())) {
      offenders.push_back({.name = named.fqn, .kind = SlotKind::kUnmanaged});
    }
  }
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& named : order_) {
    if (named.tensor.requires_grad()) {
      parameters.push_back(named.tensor);
    }
  }
  if (!offenders.empty()) {
    refuse(offenders);
  }
  assert_all_managed(parameters);
  return parameters;
}

void OptimizerGuard::reshard() const {
  state_->reshard();
  state_->require_reduced_gradients();
}

} // namespace tieshard

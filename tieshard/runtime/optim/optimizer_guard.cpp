#include "tieshard/runtime/optim/optimizer_guard.h"

#include <algorithm>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/optim/switch_to_sharded.h"

namespace tieshard {
namespace {

std::shared_ptr<FsdpState> require_state(const LanguageModel& model) {
  std::shared_ptr<FsdpState> state = sharded_state(model);
  if (state == nullptr) {
    throw UsageError({.code = Code::kNotSharded,
                      .what = "fully_shard has not been applied",
                      .fix = "call fully_shard(model, plan, mesh) before OptimizerGuard(model)"});
  }
  return state;
}

/// Of a tensor that stands in an optimizer for the `times`-th time: a name that it has, or the same one again.
void tell_repetition(SlotReport& report, const std::vector<std::string>& names, std::size_t times) {
  report.kind = times < names.size() ? SlotKind::kAlias : SlotKind::kDuplicate;
  if (report.kind == SlotKind::kAlias) {
    report.detail = concat("it is ", report.name);
    report.name = names[times];
  }
}

std::vector<std::vector<at::Tensor>> groups_of(const torch::optim::Optimizer& optimizer) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& group : optimizer.param_groups()) {
    groups.push_back(group.params());
  }
  return groups;
}

/// Whether an optimizer that the guard builds does not have such a slot.
bool is_mended_by_build(SlotKind kind) {
  return kind != SlotKind::kStale && kind != SlotKind::kUnmanaged && kind != SlotKind::kForeignGradient;
}

} // namespace

/// Names of each tensor of a module, and the tensor of each name.
struct OptimizerGuard::ModuleNames {
  explicit ModuleNames(const torch::nn::Module& module) {
    for (const NamedTensor& named : named_parameters(module)) {
      names[named.tensor.unsafeGetTensorImpl()].push_back(named.fqn);
      tensors.emplace(named.fqn, named.tensor.unsafeGetTensorImpl());
    }
  }

  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names;
  std::unordered_map<std::string, const c10::TensorImpl*> tensors;
};

OptimizerGuard::OptimizerGuard(std::shared_ptr<FsdpState> state) : state_(std::move(state)) {}

OptimizerGuard::OptimizerGuard(const LanguageModel& model) : OptimizerGuard(require_state(model)) {}

void OptimizerGuard::register_managed(const std::vector<NamedTensor>& parameters) {
  registered_.insert(registered_.end(), parameters.begin(), parameters.end());
  managed_.reset();
}

/// Made again when the state manages more than at the last look: its parameters move then.
const OptimizerGuard::Managed& OptimizerGuard::managed() const {
  std::size_t of_state = 0;
  for (const auto& group : state_->groups()) {
    of_state += group->parameters().size();
  }
  if (managed_ && managed_->of_state == of_state) {
    return *managed_;
  }
  managed_.emplace();
  managed_->of_state = of_state;
  const auto add = [this](const NamedTensor& named) {
    if (managed_->fqns.emplace(named.tensor.unsafeGetTensorImpl(), named.fqn).second) {
      managed_->order.push_back(named);
    }
  };
  for (const FsdpParam* parameter : state_->managed()) {
    add({parameter->fqn(), parameter->parameter()});
    managed_->sharded.emplace(parameter->parameter().unsafeGetTensorImpl(), parameter);
  }
  for (const NamedTensor& named : registered_) {
    add(named);
  }
  return *managed_;
}

/// Sharded, and in the module no more.
bool OptimizerGuard::is_gone(const c10::TensorImpl* impl, const ModuleNames& module) const {
  return managed().sharded.contains(impl) && !module.names.contains(impl);
}

std::vector<SlotReport> OptimizerGuard::inspect(const Groups& groups, const ModuleNames& module) const {
  const Managed& known = managed();
  std::unordered_map<const c10::TensorImpl*, std::size_t> times;
  std::vector<SlotReport> slots;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t slot = 0; slot < groups[group].size(); ++slot) {
      const at::Tensor& tensor = groups[group][slot];
      const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
      SlotReport report{.group = group, .slot = slot, .held = impl, .local = tensor.sizes().vec()};
      const auto managed = known.fqns.find(impl);
      const auto names = module.names.find(impl);
      if (managed != known.fqns.end()) {
        report.name = managed->second;
        const auto current = module.tensors.find(report.name);
        report.current = current == module.tensors.end() ? nullptr : current->second;
        const auto parameter = known.sharded.find(impl);
        report.whole = parameter == known.sharded.end() ? Shape() : parameter->second->spec().shape;
        const std::size_t before = times[impl]++;
        if (is_gone(impl, module) || (report.current != nullptr && report.current != impl)) {
          report.kind = SlotKind::kStale;
        } else if (!tensor.requires_grad()) {
          report.kind = SlotKind::kFrozen;
        } else if (before > 0) {
          tell_repetition(report, names == module.names.end() ? std::vector<std::string>() : names->second, before);
        }
      } else if (names != module.names.end()) {
        report.name = names->second.front();
        report.current = impl;
        report.kind = SlotKind::kUnmanaged;
      } else {
        report.name = concat("(unknown), shape ", to_string(report.local));
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
  bool mended = true;
  for (const SlotReport& slot : offenders) {
    where += concat(", ", slot.name);
    why += concat(why.empty() ? "" : "\n         ", slot.reason());
    mended = mended && is_mended_by_build(slot.kind);
  }
  throw UsageError({.code = Code::kOptimizerParameter,
                    .what = "an optimizer holds parameters that it must not step, or lacks some that it must",
                    .where = std::move(where),
                    .why = std::move(why),
                    .fix = mended ? "do what stands behind each of them; or build the optimizer with "
                                    "OptimizerGuard(model).build<Optimizer>(options) after fully_shard, which takes "
                                    "each trainable managed parameter once"
                                  : "do what stands behind each of them: the module or its gradients have to change, "
                                    "and another optimizer alone would be refused too"});
}

std::vector<SlotReport> OptimizerGuard::left_out(const Held& held, const ModuleNames& module) const {
  std::vector<SlotReport> missing;
  for (const NamedTensor& named : managed().order) {
    const c10::TensorImpl* const impl = named.tensor.unsafeGetTensorImpl();
    if (named.tensor.requires_grad() && !held.contains(impl) && !is_gone(impl, module)) {
      missing.push_back({.name = named.fqn, .kind = SlotKind::kLeftOut});
    }
  }
  return missing;
}

/// Trainable parameters of the module that are neither managed nor in `held`.
std::vector<SlotReport> OptimizerGuard::unmanaged(const Held& held) const {
  std::vector<SlotReport> offenders;
  for (const NamedTensor& named : unique_parameters(state_->root())) {
    const c10::TensorImpl* const impl = named.tensor.unsafeGetTensorImpl();
    if (named.tensor.requires_grad() && !managed().fqns.contains(impl) && !held.contains(impl)) {
      offenders.push_back({.name = named.fqn, .kind = SlotKind::kUnmanaged});
    }
  }
  return offenders;
}

/// Everything that is wrong with an optimizer of such groups.
std::vector<SlotReport> OptimizerGuard::inadmissible(const Groups& groups) const {
  const ModuleNames module(state_->root());
  Held held;
  std::vector<SlotReport> offenders = inspect(groups, module);
  for (SlotReport& slot : offenders) {
    held.insert(slot.held);
    const at::Tensor& gradient = groups[slot.group][slot.slot].grad();
    if (slot.kind == SlotKind::kManaged && gradient.defined() && gradient.sizes() != at::IntArrayRef(slot.local)) {
      slot.kind = SlotKind::kForeignGradient;
      slot.detail = concat("expected ", to_string(slot.local), ", got ", to_string(gradient.sizes().vec()));
    }
  }
  std::erase_if(offenders, [](const SlotReport& slot) { return slot.kind == SlotKind::kManaged; });
  for (const std::vector<SlotReport>& more : {left_out(held, module), unmanaged(held)}) {
    offenders.insert(offenders.end(), more.begin(), more.end());
  }
  return offenders;
}

void OptimizerGuard::assert_all_managed(const std::vector<at::Tensor>& parameters) const {
  std::vector<SlotReport> slots = inspect({parameters}, ModuleNames(state_->root()));
  std::erase_if(slots, [](const SlotReport& slot) { return slot.kind == SlotKind::kManaged; });
  if (!slots.empty()) {
    refuse(slots);
  }
}

std::vector<SlotReport> OptimizerGuard::report(const torch::optim::Optimizer& optimizer) const {
  return inspect(groups_of(optimizer), ModuleNames(state_->root()));
}

void OptimizerGuard::require_admissible(const torch::optim::Optimizer& optimizer) const {
  if (const std::vector<SlotReport> offenders = inadmissible(groups_of(optimizer)); !offenders.empty()) {
    refuse(offenders);
  }
}

void OptimizerGuard::switch_to_sharded(torch::optim::Optimizer& optimizer,
                                       const std::vector<NamedTensor>& originals) const {
  reshard();
  const SwitchPlan plan = plan_switch(optimizer, *state_, originals);
  if (!plan.refused.empty()) {
    refuse(plan.refused);
  }
  apply_switch(optimizer, *state_, plan);
}

/// Looks at the optimizer as it would be after the switch, so that one refusal lists all and leaves it as it is.
void OptimizerGuard::take_over(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& originals) const {
  reshard();
  const SwitchPlan plan = plan_switch(optimizer, *state_, originals);
  Groups groups = groups_of(optimizer);
  for (const SwitchPlan::Replacement& replacement : plan.replacements) {
    groups[replacement.group][replacement.slot] = replacement.managed;
  }
  std::vector<SlotReport> offenders = plan.refused;
  for (const SlotReport& slot : inadmissible(groups)) {
    const bool is_listed = slot.held != nullptr && std::ranges::any_of(plan.refused, [&](const SlotReport& refused) {
                             return refused.group == slot.group && refused.slot == slot.slot;
                           });
    if (!is_listed) {
      offenders.push_back(slot);
    }
  }
  if (!offenders.empty()) {
    refuse(offenders);
  }
  apply_switch(optimizer, *state_, plan);
}

void OptimizerGuard::drop_frozen(torch::optim::Optimizer& optimizer) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::erase_if(group.params(), [&](const at::Tensor& parameter) {
      if (!parameter.requires_grad()) {
        optimizer.state().erase(parameter.unsafeGetTensorImpl());
      }
      return !parameter.requires_grad();
    });
  }
}

std::vector<at::Tensor> OptimizerGuard::trainable() const {
  const ModuleNames module(state_->root());
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& named : managed().order) {
    const bool is_replaced = module.tensors.contains(named.fqn); // by another tensor: refused below as stale
    const bool is_removed = !is_replaced && is_gone(named.tensor.unsafeGetTensorImpl(), module);
    if (named.tensor.requires_grad() && !is_removed) {
      parameters.push_back(named.tensor);
    }
  }
  std::vector<SlotReport> offenders = inspect({parameters}, module);
  std::erase_if(offenders, [](const SlotReport& slot) { return slot.kind == SlotKind::kManaged; });
  const std::vector<SlotReport> more = unmanaged({});
  offenders.insert(offenders.end(), more.begin(), more.end());
  if (!offenders.empty()) {
    refuse(offenders);
  }
  return parameters;
}

void OptimizerGuard::reshard() const {
  state_->reshard();
  state_->require_reduced_gradients();
}

} // namespace tieshard

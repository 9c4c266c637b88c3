#include "tieshard/runtime/optim/optimizer_guard.h"

#include <algorithm>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/optim/switch_to_sharded.h"

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

/// Names of each tensor of a module, and the tensor of each name.
struct ModuleNames {
  explicit ModuleNames(const torch::nn::Module& module) {
    for (const NamedTensor& named : named_parameters(module)) {
      names[named.tensor.unsafeGetTensorImpl()].push_back(named.fqn);
      tensors.emplace(named.fqn, named.tensor.unsafeGetTensorImpl());
    }
  }

  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names;
  std::unordered_map<std::string, const c10::TensorImpl*> tensors;
};

/// Of a tensor that stands in an optimizer for the `times`-th time: a name that it has, or the same one again.
void tell_repetition(SlotReport& report, const std::vector<std::string>& names, std::size_t times) {
  report.kind = times < names.size() ? SlotKind::kAlias : SlotKind::kDuplicate;
  if (report.kind == SlotKind::kAlias) {
    report.detail = concat("it is ", report.name);
    report.name = names[times];
  }
}

std::unordered_set<const c10::TensorImpl*> held_by(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> held;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      held.insert(tensor.unsafeGetTensorImpl());
    }
  }
  return held;
}

} // namespace

OptimizerGuard::OptimizerGuard(std::shared_ptr<FsdpState> state) : state_(std::move(state)) {
  std::vector<NamedTensor> named;
  for (const FsdpParam* parameter : state_->managed()) {
    named.push_back({parameter->fqn(), parameter->parameter()});
    sharded_.emplace(parameter->parameter().unsafeGetTensorImpl(), parameter);
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
  const ModuleNames module(state_->root());
  std::unordered_map<const c10::TensorImpl*, std::size_t> times;
  std::vector<SlotReport> slots;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t slot = 0; slot < groups[group].size(); ++slot) {
      const at::Tensor& tensor = groups[group][slot];
      const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
      SlotReport report{.group = group, .slot = slot, .held = impl, .local = tensor.sizes().vec()};
      const auto managed = managed_.find(impl);
      const auto names = module.names.find(impl);
      if (managed != managed_.end()) {
        report.name = managed->second;
        const auto current = module.tensors.find(report.name);
        report.current = current == module.tensors.end() ? nullptr : current->second;
        const auto parameter = sharded_.find(impl);
        report.whole = parameter == sharded_.end() ? Shape() : parameter->second->spec().shape;
        const std::size_t before = times[impl]++;
        if (report.current != nullptr && report.current != impl) {
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
  for (const SlotReport& slot : offenders) {
    where += concat(", ", slot.name);
    why += concat(why.empty() ? "" : "\n         ", slot.reason());
  }
  throw UsageError(
      {.code = Code::kOptimizerParameter,
       .what = "an optimizer holds parameters that it must not step, or lacks some that it must",
       .where = std::move(where),
       .why = std::move(why),
       .fix = "build it with OptimizerGuard(model).build<Optimizer>(options) after fully_shard; it takes each "
              "trainable managed parameter once"});
}

std::vector<SlotReport> OptimizerGuard::left_out(const Held& held) const {
  std::vector<SlotReport> missing;
  for (const NamedTensor& named : order_) {
    if (named.tensor.requires_grad() && !held.contains(named.tensor.unsafeGetTensorImpl())) {
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
    if (named.tensor.requires_grad() && !managed_.contains(impl) && !held.contains(impl)) {
      offenders.push_back({.name = named.fqn, .kind = SlotKind::kUnmanaged, .detail = "it is in no group"});
    }
  }
  return offenders;
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

void OptimizerGuard::require_admissible(const torch::optim::Optimizer& optimizer) const {
  std::vector<SlotReport> offenders = report(optimizer);
  for (SlotReport& slot : offenders) {
    const at::Tensor& gradient = optimizer.param_groups()[slot.group].params()[slot.slot].grad();
    if (slot.kind == SlotKind::kManaged && gradient.defined() && gradient.sizes() != at::IntArrayRef(slot.local)) {
      slot.kind = SlotKind::kForeignGradient;
      slot.detail = concat("expected ", to_string(slot.local), ", got ", to_string(gradient.sizes().vec()));
    }
  }
  std::erase_if(offenders, [](const SlotReport& slot) { return slot.kind == SlotKind::kManaged; });
  const Held held = held_by(optimizer);
  for (const std::vector<SlotReport>& more : {left_out(held), unmanaged(held)}) {
    offenders.insert(offenders.end(), more.begin(), more.end());
  }
  if (!offenders.empty()) {
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

std::vector<at::Tensor> OptimizerGuard::trainable() const {
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& named : order_) {
    if (named.tensor.requires_grad()) {
      parameters.push_back(named.tensor);
    }
  }
  std::vector<SlotReport> offenders = inspect({parameters});
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

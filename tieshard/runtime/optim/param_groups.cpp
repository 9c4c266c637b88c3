#include "tieshard/runtime/optim/param_groups.h"

#include <unordered_map>

#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {

std::vector<ParamGroup> make_param_groups(const OptimizerGuard& guard,
                                          const torch::nn::Module& module,
                                          const std::vector<ParamGroupRule>& rules) {
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names;
  for (const NamedTensor& named : named_parameters(module)) {
    names[named.tensor.unsafeGetTensorImpl()].push_back(named.fqn);
  }
  const std::vector<at::Tensor> parameters = guard.trainable();
  std::vector<GroupCandidate> candidates;
  for (const at::Tensor& parameter : parameters) {
    candidates.push_back(
        {.names = names[parameter.unsafeGetTensorImpl()], .dims = static_cast<std::size_t>(parameter.dim())});
  }
  std::vector<ParamGroup> groups;
  for (const ParamGroupRule& rule : rules) {
    groups.push_back({.parameters = {}, .lr = rule.lr, .weight_decay = rule.weight_decay});
  }
  groups.push_back({});
  const std::vector<std::size_t> chosen = assign_param_groups(rules, candidates);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    groups[chosen[index]].parameters.push_back(parameters[index]);
  }
  if (groups.back().parameters.empty() && groups.size() > 1) {
    groups.pop_back();
  }
  return groups;
}

GroupRates::GroupRates(const torch::optim::Optimizer& optimizer) {
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    base_.push_back(group.options().get_lr());
  }
}

void GroupRates::apply(torch::optim::Optimizer& optimizer, double factor) const {
  for (std::size_t index = 0; index < base_.size(); ++index) {
    optimizer.param_groups()[index].options().set_lr(base_[index] * factor);
  }
}

} // namespace tieshard

#include "tieshard/runtime/models/experts.h"

#include <ATen/ATen.h>

#include "tieshard/runtime/models/expert_routing.h"
#include "tieshard/runtime/models/grouped_linear.h"
#include "tieshard/runtime/models/lean_functions.h"

namespace tieshard {

SparseMoeImpl::SparseMoeImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : config_(config.experts.value()) {
  gate_ = register_module("gate", Linear(config.hidden_size, config_.count, /*with_bias=*/false, options));
  const GatedMlpNames names = config_.layout == ExpertLayout::kBlockSparseMoe ? kMixtralExpertNames : GatedMlpNames{};
  auto experts = register_module("experts", torch::nn::ModuleList());
  for (std::int64_t expert = 0; expert < config_.count; ++expert) {
    experts_.emplace_back(config, config_.intermediate_size, options, names);
    experts->push_back(experts_.back());
  }
  if (config_.shared_intermediate_size > 0) {
    shared_expert_ = register_module("shared_expert", GatedMlp(config, config_.shared_intermediate_size, options));
    shared_expert_gate_ = register_module("shared_expert_gate", Linear(config.hidden_size, 1, false, options));
  }
}

at::Tensor SparseMoeImpl::forward(const at::Tensor& x_BTH) {
  const at::Tensor x = x_BTH.reshape({-1, x_BTH.size(2)});
  const ExpertRouting routing = route(gate_->forward(x), config_);
  std::vector<at::Tensor> rows = routing.dispatch(x).split_with_sizes(routing.counts);
  for (std::size_t expert = 0; expert < rows.size(); ++expert) {
    rows[expert] = experts_[expert]->forward(rows[expert]);
  }
  at::Tensor y = routing.combine(at::cat(rows), x.size(0));
  if (!shared_expert_.is_empty()) {
    y = y + shared_expert_gate_->forward(x).sigmoid() * shared_expert_->forward(x);
  }
  return y.view_as(x_BTH);
}

StackedExpertsImpl::StackedExpertsImpl(std::int64_t hidden,
                                       const ExpertsConfig& config,
                                       const at::TensorOptions& options) {
  const std::int64_t inner = config.intermediate_size;
  const auto add = [&](const char* name, at::IntArrayRef shape) {
    return register_parameter(name, at::empty(shape, options));
  };
  gate_up_proj = add("gate_up_proj", {config.count, hidden, 2 * inner});
  gate_up_proj_bias = add("gate_up_proj_bias", {config.count, 2 * inner});
  down_proj = add("down_proj", {config.count, inner, hidden});
  down_proj_bias = add("down_proj_bias", {config.count, hidden});
}

StackedMoeImpl::StackedMoeImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : config_(config.experts.value()) {
  router_ = register_module("router", Linear(config.hidden_size, config_.count, /*with_bias=*/true, options));
  experts_ = register_module("experts", StackedExperts(config.hidden_size, config_, options));
}

at::Tensor StackedMoeImpl::forward(const at::Tensor& x_BTH) {
  const at::Tensor x = x_BTH.reshape({-1, x_BTH.size(2)});
  const ExpertRouting routing = route(router_->forward(x), config_);
  const at::Tensor both =
      grouped_linear(routing.dispatch(x), experts_->gate_up_proj, experts_->gate_up_proj_bias, routing.counts);
  const at::Tensor y = grouped_linear(
      clamped_swiglu(both, config_.swiglu_limit), experts_->down_proj, experts_->down_proj_bias, routing.counts);
  return routing.combine(y, x.size(0)).view_as(x_BTH);
}

} // namespace tieshard

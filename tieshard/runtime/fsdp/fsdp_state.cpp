#include "tieshard/runtime/fsdp/fsdp_state.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/activation_checkpoint.h"
#include "tieshard/runtime/fsdp/post_backward_node.h"

namespace tieshard {

FsdpState::FsdpState(torch::nn::Module& root,
                     const DeviceMesh& mesh,
                     ShardPlan plan,
                     const std::vector<UnitModule>& units,
                     std::vector<std::unique_ptr<FsdpParamGroup>> groups,
                     const FullyShardOptions& options,
                     std::vector<Diagnostic> findings)
    : root_(root),
      world_(mesh),
      mesh_(mesh.axis("dp_shard")),
      plan_(std::move(plan)),
      groups_(std::move(groups)),
      options_(options),
      findings_(std::move(findings)),
      root_is_unit_(units.front().module == &root) {
  for (std::size_t index = 0; index < units.size(); ++index) {
    group_of_.emplace(units[index].module, groups_[index].get());
  }
}

at::Tensor FsdpState::run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) {
  return run_tensors(unit,
                     {input},
                     [forward](const std::vector<at::Tensor>& inputs) {
                       return std::vector<at::Tensor>{forward(inputs.front())};
                     })
      .front();
}

std::vector<at::Tensor> FsdpState::run_tensors(torch::nn::Module& unit,
                                               const std::vector<at::Tensor>& inputs,
                                               const TensorsForward& forward) {
  const auto found = group_of_.find(&unit);
  if (found == group_of_.end()) {
    return forward(inputs);
  }
  FsdpParamGroup& group = *found->second;
  enter_forward(group);
  std::vector<at::Tensor> outputs = run_unit(group, inputs, forward);
  if (is_root(group)) {
    leave_root_forward();
  }
  return outputs;
}

void FsdpState::enter_forward(FsdpParamGroup& group) {
  abandon_broken_backward();
  if (is_root(group)) {
    ran_.clear();
    order_.begin_forward();
  }
  ran_.insert(&group);
  group.pre_forward();
  if (recomputing_ > 0) {
    return; // no forward of its own: it has no part in the order
  }
  for (FsdpParamGroup* next : order_.enter(group, options_.forward_prefetch)) {
    next->pre_forward();
  }
}

/// Units that were gathered ahead and did not run are freed again.
void FsdpState::leave_root_forward() {
  for (const auto& group : groups_) {
    if (!ran_.contains(group.get())) {
      group->reshard();
    }
  }
  if (root_is_unit_ && !options_.allow_idle_units) {
    require_all_ran();
  }
}

std::vector<at::Tensor> FsdpState::run_unit(FsdpParamGroup& group,
                                            const std::vector<at::Tensor>& inputs,
                                            const TensorsForward& forward) {
  std::vector<at::Tensor> outputs;
  try {
    outputs = compute(group, inputs, forward);
  } catch (...) {
    for (const auto& gathered : groups_) {
      if (gathered.get() == &group || !ran_.contains(gathered.get())) { // it, and what was gathered ahead
        gathered->reshard();
      }
    }
    throw;
  }
  bool has_backward = false;
  for (const at::Tensor& output : outputs) {
    if (at::GradMode::is_enabled() && output.defined() && output.requires_grad()) {
      has_backward = true;
      output.register_hook([state = weak_from_this(), &group](const at::Tensor&) {
        if (const auto alive = state.lock()) {
          alive->pre_backward(group);
        }
      });
    }
  }
  if (has_backward) {
    if (recomputing_ == 0) {
      order_.leave(group);
    }
  }
  group.post_forward(has_backward);
  return outputs;
}

std::vector<at::Tensor> FsdpState::compute(FsdpParamGroup& group,
                                           const std::vector<at::Tensor>& inputs,
                                           const TensorsForward& forward) {
  const auto cast = [](const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
    std::vector<at::Tensor> cast_tensors;
    for (const at::Tensor& tensor : tensors) {
      cast_tensors.push_back(tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor);
    }
    return cast_tensors;
  };
  const MixedPrecisionPolicy& policy = group.mp_policy();
  const bool casts_inputs = policy.param_dtype && policy.cast_forward_inputs;
  const std::vector<at::Tensor> attached =
      attach_post_backward(casts_inputs ? cast(inputs, *policy.param_dtype) : inputs, shared_from_this(), group);
  const std::vector<at::Tensor> outputs =
      group.activation_checkpointing()
          ? run_checkpointed(attached,
                             forward,
                             group.trainable(),
                             [state = shared_from_this()] { return state->hold_recomputing(); })
          : forward(attached);
  return policy.output_dtype ? cast(outputs, *policy.output_dtype) : outputs;
}

/// What ran on shards ran wrong, mostly without an error of its own.
void FsdpState::require_all_ran() const {
  std::string idle;
  for (const auto& group : groups_) {
    if (!ran_.contains(group.get()) && !group->parameters().empty()) {
      idle += concat(idle.empty() ? "" : ", ", group->name());
    }
  }
  if (!idle.empty()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a unit did not run in a forward of the root",
                      .where = concat(mesh_.where(), ", ", idle),
                      .why = "its parameters were shards all the time; if its module was called, it computed with them",
                      .fix =
                          "call the module through state->run(module, input, forward); set allow_idle_units if it is "
                          "indeed left out"});
  }
}

void FsdpState::pre_backward(FsdpParamGroup& group) {
  abandon_broken_backward();
  if (backward_pass_ == kNoPass) {
    backward_pass_ = torch::autograd::get_current_graph_task_id();
    torch::autograd::Engine::get_default_engine().queue_callback(
        [state = shared_from_this()] { state->finish_backward(); });
  }
  group.pre_backward();
  if (recomputing_ == 0) {
    for (FsdpParamGroup* next : order_.backward_after(group, options_.backward_prefetch)) {
      next->unshard();
    }
  }
}

void FsdpState::finish_backward() {
  backward_pass_ = kNoPass;
  for (const auto& group : groups_) {
    group->end_of_pass();
    if (last_backward_) {
      group->reshard();
    }
  }
}

void FsdpState::set_requires_gradient_sync(bool sync) {
  gradient_sync_ = sync;
  update_gradient_sync();
}

void FsdpState::set_is_last_backward(bool last) {
  last_backward_ = last;
  update_gradient_sync();
}

void FsdpState::update_gradient_sync() {
  for (const auto& group : groups_) {
    group->set_gradient_sync(gradient_sync_, /*keep_whole=*/!last_backward_);
  }
}

void FsdpState::require_reduced_gradients() const {
  for (const auto& group : groups_) {
    if (group->has_unreduced_gradients()) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "gradients are kept that were not reduced",
                        .where = concat(mesh_.where(), ", unit \"", group->name(), "\""),
                        .why = "every backward pass since the last step ran without gradient sync",
                        .fix = "call set_requires_gradient_sync(true) before the last backward pass of a step"});
    }
  }
}

/// A backward pass inside a backward pass has a number of its own, but belongs to the outer one.
std::shared_ptr<void> FsdpState::hold_recomputing() {
  ++recomputing_;
  return {this, [state = shared_from_this()](void*) { --state->recomputing_; }};
}

void FsdpState::abandon_broken_backward() {
  if (recomputing_ > 0) {
    return;
  }
  if (backward_pass_ == kNoPass || backward_pass_ == torch::autograd::get_current_graph_task_id()) {
    return;
  }
  backward_pass_ = kNoPass;
  for (const auto& group : groups_) {
    group->abandon_backward();
  }
}

void FsdpState::reshard() {
  abandon_broken_backward();
  for (const auto& group : groups_) {
    group->reshard();
  }
}

void FsdpState::unshard() {
  for (const auto& group : groups_) {
    group->unshard();
  }
}

std::vector<const FsdpParam*> FsdpState::managed() const {
  std::map<std::string, const FsdpParam*> by_name;
  for (const auto& group : groups_) {
    for (const FsdpParam& parameter : group->parameters()) {
      by_name.emplace(parameter.fqn(), &parameter);
    }
  }
  std::vector<const FsdpParam*> ordered;
  for (const ShardedParameter& parameter : plan_.parameters()) {
    if (const auto found = by_name.find(parameter.fqn); found != by_name.end()) {
      ordered.push_back(found->second);
    }
  }
  return ordered;
}

} // namespace tieshard

#include "tieshard/runtime/fsdp/fsdp_state.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace tieshard {

/// Passes its gradient on after reducing its unit's gradients. It keeps the state alive as long as the graph lives.
class PostBackwardNode : public torch::autograd::Node {
 public:
  PostBackwardNode(torch::autograd::edge_list&& edges, std::shared_ptr<FsdpState> state, FsdpParamGroup& group)
      : Node(std::move(edges)), state_(std::move(state)), group_(group) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    group_.post_backward();
    return std::move(gradients);
  }
  std::string name() const override {
    return "FsdpPostBackward";
  }

 private:
  std::shared_ptr<FsdpState> state_;
  FsdpParamGroup& group_;
};

FsdpState::FsdpState(torch::nn::Module& root,
                     DeviceMesh mesh,
                     ShardPlan plan,
                     std::vector<std::unique_ptr<FsdpParamGroup>> groups,
                     std::unordered_map<const torch::nn::Module*, FsdpParamGroup*> group_of,
                     const FullyShardOptions& options)
    : root_(root),
      mesh_(std::move(mesh)),
      plan_(std::move(plan)),
      groups_(std::move(groups)),
      group_of_(std::move(group_of)),
      options_(options) {}

at::Tensor FsdpState::run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) {
  const auto found = group_of_.find(&unit);
  if (found == group_of_.end()) {
    return forward(input);
  }
  FsdpParamGroup& group = *found->second;
  const bool is_root = found->second == groups_.front().get();
  abandon_broken_backward();
  group.unshard();
  at::Tensor output;
  try {
    output = compute(group, is_root, input, forward);
  } catch (...) {
    group.reshard();
    throw;
  }
  const bool has_backward = at::GradMode::is_enabled() && output.requires_grad();
  if (!has_backward || (options_.reshard_after_forward && !is_root)) {
    group.reshard();
  }
  if (has_backward) {
    output.register_hook([state = weak_from_this(), &group](const at::Tensor&) {
      if (const auto alive = state.lock()) {
        alive->pre_backward(group);
      }
    });
  }
  return output;
}

at::Tensor FsdpState::compute(FsdpParamGroup& group, bool is_root, const at::Tensor& input, const Forward& forward) {
  const MixedPrecisionPolicy& policy = options_.mp_policy;
  at::Tensor x = input;
  if (policy.param_dtype && policy.cast_forward_inputs && x.is_floating_point()) {
    x = x.to(*policy.param_dtype);
  }
  at::Tensor output = forward(attach_post_backward(x, group));
  return is_root && policy.output_dtype ? output.to(*policy.output_dtype) : output;
}

at::Tensor FsdpState::attach_post_backward(const at::Tensor& input, FsdpParamGroup& group) {
  if (!at::GradMode::is_enabled() || !input.requires_grad()) {
    return input;
  }
  auto node =
      c10::make_intrusive<PostBackwardNode>(torch::autograd::collect_next_edges(input), shared_from_this(), group);
  at::Tensor output = input.detach();
  torch::autograd::set_history(output, node);
  return output;
}

void FsdpState::pre_backward(FsdpParamGroup& group) {
  abandon_broken_backward();
  if (backward_pass_ == kNoPass) {
    backward_pass_ = torch::autograd::get_current_graph_task_id();
    torch::autograd::Engine::get_default_engine().queue_callback(
        [state = shared_from_this()] { state->finish_backward(); });
  }
  group.pre_backward();
}

void FsdpState::finish_backward() {
  backward_pass_ = kNoPass;
  for (const auto& group : groups_) {
    group->post_backward();
    group->reshard();
  }
}

void FsdpState::abandon_broken_backward() {
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

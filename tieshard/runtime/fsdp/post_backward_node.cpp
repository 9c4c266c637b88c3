#include "tieshard/runtime/fsdp/post_backward_node.h"

#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {
namespace {

/// Passes its gradients on after its unit's were reduced.
class PostBackwardNode : public torch::autograd::Node {
 public:
  PostBackwardNode(torch::autograd::edge_list&& edges,
                   std::shared_ptr<FsdpState> state,
                   std::shared_ptr<BackwardRound> round)
      : Node(std::move(edges)), state_(std::move(state)), round_(std::move(round)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (round_->reached()) {
      round_->group().post_backward();
    }
    return std::move(gradients);
  }
  std::string name() const override {
    return "FsdpPostBackward";
  }

 private:
  std::shared_ptr<FsdpState> state_;
  std::shared_ptr<BackwardRound> round_;
};

} // namespace

AttachedInputs attach_post_backward(const std::vector<at::Tensor>& inputs,
                                    std::shared_ptr<FsdpState> state,
                                    std::shared_ptr<BackwardRound> round) {
  AttachedInputs attached{.inputs = inputs};
  if (!at::GradMode::is_enabled()) {
    return attached;
  }
  torch::autograd::variable_list sources;
  torch::autograd::variable_list copies;
  for (at::Tensor& input : attached.inputs) {
    if (input.defined() && input.requires_grad()) {
      sources.push_back(input);
      input = input.detach();
      copies.push_back(input);
    }
  }
  if (!sources.empty()) {
    torch::autograd::set_history(copies,
                                 c10::make_intrusive<PostBackwardNode>(
                                     torch::autograd::collect_next_edges(sources), std::move(state), std::move(round)));
    attached.has_node = true;
  }
  return attached;
}

} // namespace tieshard

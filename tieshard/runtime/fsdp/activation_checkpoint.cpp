#include "tieshard/runtime/fsdp/activation_checkpoint.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

using torch::autograd::variable_list;

/// The generators that a forward on `inputs` draws from: the CPU's, and that of another device.
std::vector<at::Generator> generators_of(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Generator> generators{at::globalContext().defaultGenerator(at::kCPU)};
  const auto other =
      std::ranges::find_if(inputs, [](const at::Tensor& input) { return input.defined() && !input.is_cpu(); });
  if (other != inputs.end()) {
    generators.push_back(at::globalContext().defaultGenerator(other->device()));
  }
  return generators;
}

std::vector<at::Tensor> states_of(std::vector<at::Generator>& generators) {
  std::vector<at::Tensor> states;
  for (at::Generator& generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_states(std::vector<at::Generator>& generators, const std::vector<at::Tensor>& states) {
  for (std::size_t index = 0; index < generators.size(); ++index) {
    const std::lock_guard lock(generators[index].mutex());
    generators[index].set_state(states[index]);
  }
}

/// The random numbers of an earlier time, until it goes.
class EarlierRandomNumbers {
 public:
  EarlierRandomNumbers(std::vector<at::Generator>& generators, const std::vector<at::Tensor>& earlier)
      : generators_(generators), now_(states_of(generators)) {
    set_states(generators_, earlier);
  }
  ~EarlierRandomNumbers() {
    set_states(generators_, now_);
  }
  EarlierRandomNumbers(const EarlierRandomNumbers&) = delete;
  EarlierRandomNumbers& operator=(const EarlierRandomNumbers&) = delete;

 private:
  std::vector<at::Generator>& generators_;
  std::vector<at::Tensor> now_;
};

bool may_require_grad(const at::Tensor& tensor) {
  return tensor.defined() && torch::autograd::isDifferentiableType(tensor.scalar_type());
}

class CheckpointNode : public torch::autograd::Node {
 public:
  CheckpointNode(const std::vector<at::Tensor>& inputs,
                 UnitRunner::TensorsForward forward,
                 std::function<std::shared_ptr<void>()> around)
      : forward_(std::move(forward)), around_(std::move(around)), generators_(generators_of(inputs)) {
    random_states_ = states_of(generators_);
    variable_list sources;
    for (const at::Tensor& input : inputs) {
      saved_.emplace_back(input, /*is_output=*/false);
      requires_grad_.push_back(input.defined() && input.requires_grad());
      if (requires_grad_.back()) {
        sources.push_back(input);
      }
    }
    set_next_edges(torch::autograd::collect_next_edges(sources));
  }

  /// The node's outputs are the outputs of the forward at these places.
  void set_places(std::vector<std::size_t> places) {
    places_ = std::move(places);
  }

  variable_list apply(variable_list&& gradients) override {
    if (released_) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "a backward pass goes twice through one graph",
                        .where = name(),
                        .fix = "give retain_graph=true to the first backward"});
    }
    std::vector<at::Tensor> inputs;
    for (std::size_t index = 0; index < saved_.size(); ++index) {
      at::Tensor input = saved_[index].unpack(nullptr);
      if (input.defined()) {
        input = input.detach().set_requires_grad(requires_grad_[index]);
      }
      inputs.push_back(std::move(input));
    }
    const at::AutoGradMode with_graph(true);
    const std::shared_ptr<void> held = around_();
    std::vector<at::Tensor> outputs;
    {
      const EarlierRandomNumbers random(generators_, random_states_);
      outputs = forward_(inputs);
    }
    variable_list roots;
    variable_list root_gradients;
    for (std::size_t index = 0; index < places_.size(); ++index) {
      const at::Tensor& output = outputs.at(places_[index]);
      if (gradients[index].defined() && output.requires_grad()) {
        roots.push_back(output);
        root_gradients.push_back(gradients[index]);
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, root_gradients);
    }
    variable_list passed;
    for (std::size_t index = 0; index < inputs.size(); ++index) {
      if (requires_grad_[index]) {
        passed.push_back(inputs[index].grad());
      }
    }
    return passed;
  }

  void release_variables() override {
    for (torch::autograd::SavedVariable& saved : saved_) {
      saved.reset_data();
    }
    released_ = true;
  }

  std::string name() const override {
    return "ActivationCheckpoint";
  }

 private:
  UnitRunner::TensorsForward forward_;
  std::function<std::shared_ptr<void>()> around_;
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> random_states_;
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<bool> requires_grad_; ///< of each input
  std::vector<std::size_t> places_;
  bool released_ = false;
};

} // namespace

std::vector<at::Tensor> run_checkpointed(const std::vector<at::Tensor>& inputs,
                                         const UnitRunner::TensorsForward& forward,
                                         bool parameters_require_grad,
                                         std::function<std::shared_ptr<void>()> around) {
  const bool inputs_require_grad =
      std::ranges::any_of(inputs, [](const at::Tensor& input) { return input.defined() && input.requires_grad(); });
  if (!at::GradMode::is_enabled() || (!inputs_require_grad && !parameters_require_grad)) {
    return forward(inputs);
  }
  const auto node = c10::make_intrusive<CheckpointNode>(inputs, forward, std::move(around));
  std::vector<at::Tensor> outputs;
  {
    const at::NoGradGuard no_graph;
    outputs = forward(inputs);
  }
  std::vector<std::size_t> places;
  variable_list differentiable;
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    if (may_require_grad(outputs[index])) {
      outputs[index] = outputs[index].detach(); // it may be one of the inputs
      places.push_back(index);
      differentiable.push_back(outputs[index]);
    }
  }
  node->set_places(std::move(places));
  torch::autograd::set_history(differentiable, node);
  return outputs;
}

} // namespace tieshard

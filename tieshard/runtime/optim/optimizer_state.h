// tieshard/runtime/optim/optimizer_state.h
//
// What an optimizer keeps for a parameter, by name: LibTorch has a class for each optimizer and no common view.
//
// Flow:   switch_to_sharded, runtime/state/checkpoint_blocks, load_checkpoint -> [this]
// Source: torch/optim/{adam,adamw,adagrad,rmsprop,sgd}.h; the names are those of torch.optim's state in Python.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace tieshard {

/// The members of one parameter's state; pointers into it.
struct StateFields {
  std::vector<std::pair<std::string, at::Tensor*>> moments; ///< shaped as the parameter; may be undefined
  std::vector<std::pair<std::string, std::int64_t*>> counters;
};

/// What the state of an optimizer outside LibTorch derives from beside OptimizerParamState, so that it can be cut with
/// its parameter, saved and restored.
class MomentState {
 public:
  virtual ~MomentState() = default;
  virtual StateFields fields() = 0;
};

/// Nothing for a class that is neither one of LibTorch's Adam, AdamW, SGD, RMSprop and Adagrad nor a MomentState
/// (LBFGS, whose state is flat, is none).
std::optional<StateFields> fields_of(torch::optim::OptimizerParamState& state);

/// The defined moments of `state`; nothing where fields_of() gives nothing.
std::optional<std::vector<at::Tensor>> moments(const torch::optim::OptimizerParamState& state);

/// An empty state of the class that `optimizer` keeps: one of LibTorch's five above, or of this project's. Null for any
/// other.
std::unique_ptr<torch::optim::OptimizerParamState> new_state(const torch::optim::Optimizer& optimizer);

/// Adagrad makes its state when it is made, and a step asserts that it is there: gives parameters that were added since
/// the state that its constructor would have given them. Nothing for other optimizers.
void make_missing_state(torch::optim::Optimizer& optimizer);

} // namespace tieshard

// tieshard/runtime/fsdp/post_backward_node.h
//
// Where in a backward pass a unit is finished: a node in the graph before the unit's own.
//
// Flow:   fsdp_state -> [this] -> autograd -> fsdp_param_group
// Source: FSDP2's RegisterPostBackwardFunction.
//
// Note: [Backward order] Nodes of one graph run in falling order of creation, and gradient accumulation before all of
//       them. The node is made just before the unit's forward, so when it runs the unit's gradients are complete.

#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/fsdp/unit_rounds.h"

namespace tieshard {

class FsdpState;

struct AttachedInputs {
  std::vector<at::Tensor> inputs;
  bool has_node = false;
};

/// The inputs of a unit's module, with the node between those that require a gradient and what made them. When none
/// does, or without grad mode, they come back as they are, and the unit is finished at the end of the pass.
/// @param state  lives as long as the graph
AttachedInputs attach_post_backward(const std::vector<at::Tensor>& inputs,
                                    std::shared_ptr<FsdpState> state,
                                    std::shared_ptr<BackwardRound> round);

} // namespace tieshard

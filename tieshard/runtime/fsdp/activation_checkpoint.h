// tieshard/runtime/fsdp/activation_checkpoint.h
//
// A part of a forward that keeps its inputs only; the backward pass computes the rest again.
//
// Flow:   fsdp_state -> [this] -> autograd
// Source: torch.utils.checkpoint (use_reentrant=True): a backward pass inside the backward pass.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/models/unit_runner.h"

namespace tieshard {

/// Runs `forward(inputs)` without a graph of its own. In the backward pass it runs again, with the random numbers of
/// the first time, on the same inputs, and a pass through what it then computes gives the gradients of the parameters
/// and of the inputs.
///
/// @param forward  must give the same each time; what it captures by reference has to live until the backward pass
/// @param around   its result is held while the backward pass runs `forward` again
/// @returns what `forward` gives; every floating point output requires a gradient. Without grad mode, or when nothing
///          requires a gradient, `forward` is called through
/// An input that is changed in place before the backward pass is an error there, as for any saved tensor.
std::vector<at::Tensor> run_checkpointed(const std::vector<at::Tensor>& inputs,
                                         const UnitRunner::TensorsForward& forward,
                                         bool parameters_require_grad,
                                         std::function<std::shared_ptr<void>()> around);

} // namespace tieshard

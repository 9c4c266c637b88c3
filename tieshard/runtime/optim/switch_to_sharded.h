// tieshard/runtime/optim/switch_to_sharded.h
//
// An optimizer that was built, and maybe stepped, before fully_shard goes on with this rank's shards.
//
// Flow:   optimizer_guard (switch_to_sharded, adopt) -> [this] -> optimizer_state
// Source: accelerate's fsdp2_switch_optimizer_parameters (#3821), which swaps parameters by their addresses and drops
//         nothing but looks nothing up by name; torch.distributed.checkpoint's sharding of optimizer state.
//
// Parameters of ours stay the same objects, so an optimizer mostly holds the right ones already, and only the state has
// to be cut. Where the module's tensors were replaced (a tie made late, a parameter set by hand), the caller says which
// names the optimizer's tensors had.

#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/optim/slot_report.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {

/// What has to change in an optimizer. Made by plan_switch, without changing anything.
struct SwitchPlan {
  struct Replacement {
    std::size_t group = 0;
    std::size_t slot = 0;
    at::Tensor original;
    at::Tensor managed;
  };
  struct Cut {
    at::Tensor moment; ///< whole; the optimizer's own tensor
    const FsdpParam* parameter = nullptr;
  };
  std::vector<Replacement> replacements;
  std::vector<Cut> cuts;
  std::vector<SlotReport> refused; ///< kForeignState: state that cannot be cut, or of weights that became one
};

/// @param originals  the parameters that the optimizer was built over, by the names they had in the module; empty where
///                   the module still has the same objects
/// Pre: resharded.
SwitchPlan plan_switch(const torch::optim::Optimizer& optimizer,
                       const FsdpState& state,
                       const std::vector<NamedTensor>& originals);

/// Puts the managed parameters in the places of the originals, moves their state along, and makes each whole moment
/// this rank's part of it. Step counts are kept. No communication.
void apply_switch(torch::optim::Optimizer& optimizer, const FsdpState& state, const SwitchPlan& plan);

} // namespace tieshard

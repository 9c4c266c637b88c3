// tieshard/runtime/state/full_tensor.h
//
// Whole tensors from shards, for looking at them: tests, evaluation, small models. Export does not need them.
//
// Flow:   fsdp_state -> [this] -> caller
// Source: DTensor.full_tensor, get_model_state_dict(full_state_dict=True).

#pragma once

#include <vector>

#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {

/// The whole of something that is sharded as `parameter` is: itself, its gradient, a moment. A collective; every rank
/// must call it and gets the whole (a copy, of `local`'s dtype).
at::Tensor full_tensor(const DeviceMesh& mesh,
                       const ShardPlan& plan,
                       const FsdpParam& parameter,
                       const at::Tensor& local);

/// Every managed parameter, whole, by canonical name in registration order. A collective.
std::vector<NamedTensor> full_state_dict(const FsdpState& state);

/// This rank's shard of every managed parameter, by canonical name. Shares storage with the parameters.
std::vector<NamedTensor> sharded_state_dict(const FsdpState& state);

} // namespace tieshard

// tieshard/runtime/optim/clip_grad_norm.h
//
// The norm of the whole gradient, from shards.
//
// Flow:   fsdp_state -> [this] -> train
// Source: torch.nn.utils.clip_grad_norm_; over shards: square sums added over ranks, each storage once, replicated
//         parameters on one rank only.

#pragma once

#include <optional>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)) and returns the 2-norm before that. Every rank must call it
/// and gets the same value.
///
/// @param max_norm  infinity to only measure
/// @throws InputError non-finite-gradient, naming the parameters and the rank, on every rank; nothing is scaled then.
///         UsageError wrong-state for a max_norm that is not above 0, or gradients that were kept and not reduced
double clip_grad_norm(const FsdpState& state, double max_norm);

struct ClippedNorm {
  double norm = 0; ///< before clipping; infinite or NaN when the gradient is
  /// A warning non-finite-gradient that names each rank and its parameters, the same on every rank of the axis dp_shard
  /// (replicas hold the same gradients); nothing when all is finite.
  std::optional<Diagnostic> non_finite{};
};

/// The same for a run that skips a step it cannot use: all ranks are told, nothing is scaled and nothing thrown.
ClippedNorm clip_finite_grad_norm(const FsdpState& state, double max_norm);

} // namespace tieshard

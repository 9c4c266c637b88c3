// tieshard/runtime/state/kept_encoding.h
//
// Which quantised weights an export leaves as they are stored: those that the run has not changed.
//
// Flow: fsdp_state, the checkpoint that was loaded -> [this] -> export_layout

#pragma once

#include <set>
#include <string>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

/// Parameters that `source` stores as MXFP4, that are frozen (requires_grad is false), and whose values are still those
/// of `source`, bit for bit, on every rank: a run that goes on from a checkpoint may have others. All such parameters
/// of a module, or none: config.json can say it of a module only. Reads this rank's slices, some 16 MiB at a time.
/// Every rank of the mesh must call it. @throws PeerError io-failed, peer-failed, collective-failed
std::set<std::string> unchanged_mxfp4(const FsdpState& state, const Checkpoint& source);

/// "model.layers.0.mlp.experts" of "model.layers.0.mlp.experts.down_proj".
std::string module_of(const std::string& fqn);

} // namespace tieshard

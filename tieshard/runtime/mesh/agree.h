// tieshard/runtime/mesh/agree.h
//
// All ranks fail together: what goes wrong on one rank in a stage reaches every rank at the stage's end.
//
// Flow: load, state, train -> [this] -> collectives

#pragma once

#include <functional>
#include <string_view>

#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

/// Runs `work`, then compares notes with the other ranks. Every rank must call it with the same stage.
///
/// `work` may not contain collectives: a rank that throws in it would leave the others waiting there.
///
/// @param stage  what is being done, for messages: "load". Ranks at different stages are refused, over any connection
/// @throws what `work` threw, on the ranks where it threw; PeerError peer-failed (naming the first rank that failed,
/// the
///         stage and that rank's message) on the others; PeerError collective-failed where `work` threw nothing and the
///         others are gone or at another stage
void agree(const DeviceMesh& mesh, std::string_view stage, const std::function<void()>& work);

} // namespace tieshard

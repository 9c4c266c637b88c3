// tieshard/runtime/mesh/local_device.h
//
// The device that a rank computes on, or why it cannot.
//
// Flow:   rank_environment -> [this] -> device_mesh
// Source: torchrun's convention that LOCAL_RANK is the index of a rank's GPU.

#pragma once

#include <c10/core/Device.h>

#include "tieshard/runtime/mesh/rank_environment.h"

namespace tieshard {

/// Asks no driver, so that it may be called before the ranks are forked.
/// @throws InputError device-unavailable when this build cannot compute on that kind of device at all
void require_device_in_build(DeviceChoice choice);

/// cpu, or cuda:LOCAL_RANK, which becomes the current device of this thread.
/// @throws InputError device-unavailable when the build or the machine does not have it
at::Device local_device(const RankEnvironment& environment);

} // namespace tieshard

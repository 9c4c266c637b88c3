// tieshard/runtime/mesh/nccl_backend.h
//
// The connection of tensors on GPUs. The only file that touches CUDA's and NCCL's types; where the build has none, a
// refusal stands in its place.
//
// Flow:   device_mesh -> [this] -> c10d ProcessGroupNCCL
// Source: c10d ProcessGroupNCCL of torch 2.13. docs/devices.md says what of this was tested.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "tieshard/runtime/mesh/process_group.h"

namespace tieshard {

/// Connects `size` ranks, whose tensors lie on `device` each. Every one of them must call it. Collectives run on a
/// stream of their own, and waiting for one makes the current stream wait, not the caller.
///
/// @param point  where all ranks meet; its timeout bounds each later collective
/// @param group  name of the group; used once, and by this group alone
/// @param rank   within the group
/// @throws PeerError rendezvous-failed; InputError device-unavailable in a build without NCCL
std::shared_ptr<c10d::Backend> connect_nccl(
    const MeetingPoint& point, const std::string& group, std::int64_t rank, std::int64_t size, at::Device device);

} // namespace tieshard

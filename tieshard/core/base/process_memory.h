// tieshard/core/base/process_memory.h
//
// How much memory this process uses, has used, and could still have.
//
// Flow: the kernel -> [this] -> runtime/train, cli/load
// Source: proc(5), VmRSS and VmHWM of /proc/self/status, MemAvailable of /proc/meminfo; cgroup v2 memory.max and
// memory.current.

#pragma once

#include <cstdint>

namespace tieshard {

/// Resident set now, in bytes (VmRSS). 0 where the kernel does not say.
std::uint64_t resident_bytes();

/// What this process could add to its memory now: MemAvailable of the machine, or what its control group has left where
/// that is less. 0 where the kernel does not say.
std::uint64_t available_bytes();

/// Largest resident set so far, in bytes (VmHWM). 0 where the kernel does not say.
std::uint64_t peak_resident_bytes();

} // namespace tieshard

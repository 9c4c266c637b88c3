// tieshard/core/base/process_memory.h
//
// How much memory this process uses and has used.
//
// Flow: the kernel -> [this] -> runtime/train, cli/load
// Source: proc(5), VmRSS and VmHWM of /proc/self/status.

#pragma once

#include <cstdint>

namespace tieshard {

/// Resident set now, in bytes (VmRSS). 0 where the kernel does not say.
std::uint64_t resident_bytes();

/// Largest resident set so far, in bytes (VmHWM). 0 where the kernel does not say.
std::uint64_t peak_resident_bytes();

} // namespace tieshard

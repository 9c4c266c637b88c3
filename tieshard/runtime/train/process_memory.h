// tieshard/runtime/train/process_memory.h
//
// How much memory this process has used.
//
// Flow: the kernel -> [this] -> trainer
// Source: proc(5), VmHWM of /proc/self/status.

#pragma once

#include <cstdint>

namespace tieshard {

/// Largest resident set so far, in bytes (VmHWM). 0 where the kernel does not say.
std::uint64_t peak_resident_bytes();

} // namespace tieshard

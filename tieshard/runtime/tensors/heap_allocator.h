// tieshard/runtime/tensors/heap_allocator.h
//
// Memory of CPU tensors from a heap that keeps what is freed: a step makes the same tensors as the one before, so it
// finds its memory there instead of asking the kernel for cleared pages again.
//
// Flow:   cli/runtime, any program that trains -> [this] -> malloc
// Source: glibc's mallopt(3). LibTorch allocates through posix_memalign, which asks glibc 2.36 for more than it gives
//         back: what was freed never fits again, and the heap grows to twice what is used (docs/memory.md).

#pragma once

namespace tieshard {

/// From now on, CPU tensors of this process lie in that heap. To be called at the start of a program, before it has
/// threads; more calls change nothing. Tensors that exist stay where they are.
void use_heap_allocator();

} // namespace tieshard

// tieshard/runtime/tensors/storage_bytes.h
//
// Takes the bytes of a tensor's storage away and gives it new ones, on any device: the tensor stays the same object.
//
// Flow:   fsdp_param -> [this]
// Source: FSDP2's alloc_storage and free_storage (untyped_storage().resize_()); LibTorch's own resize is per device.

#pragma once

#include <ATen/core/Tensor.h>

namespace tieshard {

/// Uninitialised bytes for all of `tensor`, from the allocator that its storage was made with. Nothing happens when the
/// storage has as many already. Pre: the tensor begins at its storage's first byte and is contiguous.
void allocate_storage(const at::Tensor& tensor);

/// The bytes go back to their allocator; every tensor over this storage must not be read until allocate_storage().
void free_storage(const at::Tensor& tensor);

} // namespace tieshard

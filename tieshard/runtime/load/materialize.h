// tieshard/runtime/load/materialize.h
//
// Gives a meta tensor its bytes without making it another tensor.
//
// Flow: shard_loader -> [this]
// Note: [Identity] `tensor.set_data(real)` refuses to go from meta to a real device, and replacing the tensor would
// leave
//       every other holder (an alias, a member of the module, an optimizer built early) with the old one. So the
//       storage, device, sizes and dtype of the TensorImpl itself are changed, through its public c10 interface. It
//       stays the same leaf with the same autograd identity; it must not have been used in a graph before (a meta
//       tensor has not).

#pragma once

#include <ATen/core/Tensor.h>

namespace tieshard {

/// Turns `tensor`, in place, into one that shares the storage, sizes and dtype of `values`.
///
/// @returns false, changing nothing, when it has bytes already
bool materialize(const at::Tensor& tensor, const at::Tensor& values);

} // namespace tieshard

// tieshard/runtime/fsdp/sharded_mark.h
//
// Remembers which tensors fully_shard has cut, for as long as they live. A module that is cut twice would train on
// slices of slices without a word, since a shard looks like any other parameter.
//
// Flow: fully_shard -> [this] -> fully_shard

#pragma once

#include <ATen/core/Tensor.h>

namespace tieshard {

/// Notes that `parameter` is managed. Safe to call from several threads.
void mark_sharded(const at::Tensor& parameter);

bool is_marked_sharded(const at::Tensor& parameter);

} // namespace tieshard

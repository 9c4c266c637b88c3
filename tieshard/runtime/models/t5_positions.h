// tieshard/runtime/models/t5_positions.h
//
// T5's relative positions: a distance between two tokens as the number of a bucket.
//
// Flow:   models/t5.h -> [this]
// Source: Raffel et al., section 2.1; transformers 5.24 T5Attention._relative_position_bucket.

#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tieshard {

/// The bucket of each pair of `length` tokens, int64 [query, key]. Half of the buckets are exact distances, the others
/// grow by a logarithm up to `distance` and beyond. A decoder counts distances backwards only; an encoder has one half
/// for either direction.
at::Tensor t5_position_buckets(std::int64_t length, bool bidirectional, std::int64_t buckets, std::int64_t distance);

} // namespace tieshard

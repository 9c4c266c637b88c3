// tieshard/core/shm/shm_regions.h
//
// all_gather, reduce_scatter and all_to_all between the places where the bytes really lie: each rank's part is a list
// of rectangles, as the shards of a unit's parameters are in the whole ones. Nothing is packed before or unpacked
// after.
//
// Flow:   runtime/mesh -> [this] -> shm_group, reduce_elements
// Source: FSDP2's all_gather_copy_in and split_with_sizes_copy, which this makes unnecessary.
//
// The rules of shm_collectives.h hold: same calls in the same order, ranks reduced in rank order, PeerError
// collective-failed. Parts of ranks may differ in size, and be empty; every rank must know all sizes.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tieshard/core/shm/shm_group.h"

namespace tieshard {

/// `rows` runs of `row_bytes` bytes, `stride` bytes from one begin to the next.
struct Region {
  std::byte* data = nullptr;
  std::size_t rows = 0;
  std::size_t row_bytes = 0;
  std::size_t stride = 0;
};

/// One rank's part: its regions, one after the other.
using Part = std::vector<Region>;

std::size_t bytes_of(const Part& part);

/// Copies the bytes of `source`, in their order, to `target`. Pre: as many bytes in both, which do not overlap.
void copy_part(const Part& target, const Part& source);

/// outputs[r] = what rank r gives, for every rank r: outputs[own] gets `input` too, unless `input` lies there already.
/// @param outputs  by rank; outputs[own] has as many bytes as `input`
void all_gather_regions(ShmGroup& group, std::span<const Part> outputs, const Part& input);

/// output = the sum over all ranks of their inputs[own], in rank order, `input_dtype` F32, F64, F16 or BF16.
/// @param inputs        by rank: what this rank adds to that rank's output; inputs[r] has the same size on all ranks
/// @param output_dtype  `input_dtype`, or F32 of BF16 (not rounded then)
void reduce_scatter_regions(
    ShmGroup& group, const Part& output, std::span<const Part> inputs, DType input_dtype, DType output_dtype);

/// outputs[r] = what rank r has in its inputs[own], for every rank r.
/// @param outputs  by rank; outputs[r] has as many bytes here as inputs[own] has on rank r
/// @param inputs   by rank: what goes to that rank
/// @param most     no rank sends more bytes to another one; the same number on every rank
void all_to_all_regions(ShmGroup& group, std::span<const Part> outputs, std::span<const Part> inputs, std::size_t most);

} // namespace tieshard

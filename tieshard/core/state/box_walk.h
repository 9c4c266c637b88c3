// tieshard/core/state/box_walk.h
//
// The bytes of boxes, in row-major order: runs that lie together, and slabs that fit a buffer.
//
// Flow: box, box_reader, reshard, export_checkpoint -> [this] -> box.h

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tieshard/core/state/box.h"

namespace tieshard {

/// How a part of two boxes lies in both of them, each row-major. In bytes.
struct BoxRuns {
  std::uint64_t bytes = 0;          ///< of one run, which lies together in both
  std::vector<std::int64_t> counts; ///< of runs, along each dimension that is stepped through, outermost first
  std::vector<std::uint64_t> from_strides;
  std::vector<std::uint64_t> into_strides;
  std::uint64_t from_first = 0;
  std::uint64_t into_first = 0;
};

/// Pre: `part` lies in both; elements of whole bytes
BoxRuns runs_of(const Box& part, const Box& from, const Box& into, std::uint64_t element_bytes);

/// Calls take(byte in `from`, byte in `into`, bytes) for each run, in row-major order.
template <typename Take>
void for_each_run(const BoxRuns& runs, Take&& take) {
  const bool empty = std::ranges::find(runs.counts, 0) != runs.counts.end();
  if (runs.bytes == 0 || empty) {
    return;
  }
  std::vector<std::int64_t> index(runs.counts.size(), 0);
  std::uint64_t from = runs.from_first;
  std::uint64_t into = runs.into_first;
  while (true) {
    take(from, into, runs.bytes);
    std::size_t d = index.size();
    for (; d > 0; --d) {
      from += runs.from_strides[d - 1];
      into += runs.into_strides[d - 1];
      if (++index[d - 1] < runs.counts[d - 1]) {
        break;
      }
      from -= runs.from_strides[d - 1] * static_cast<std::uint64_t>(runs.counts[d - 1]);
      into -= runs.into_strides[d - 1] * static_cast<std::uint64_t>(runs.counts[d - 1]);
      index[d - 1] = 0;
    }
    if (d == 0) {
      return;
    }
  }
}

/// Cuts `container` into slabs of at most `most` elements, each a run of its elements in row-major order, and calls
/// take(slab) for those that hold something of `part`, in order. A slab has one index of each outer dimension, some of
/// one, and all of the inner ones. Pre: `part` lies in `container` and is not empty; most >= 1
template <typename Take>
void for_each_slab(const Box& container, const Box& part, std::uint64_t most, Take&& take) {
  const std::size_t rank = container.shape.size();
  if (rank == 0) {
    take(container);
    return;
  }
  std::size_t cut = rank - 1; // the dimension that slabs are runs of; an index of it has `inner` elements
  std::uint64_t inner = 1;
  while (cut > 0 && static_cast<std::uint64_t>(container.shape[cut]) <= most / inner) {
    inner *= static_cast<std::uint64_t>(container.shape[cut]);
    --cut;
  }
  const auto step = static_cast<std::int64_t>(std::min<std::uint64_t>(most / inner, INT64_MAX));
  Box slab = container;
  for (std::size_t d = 0; d <= cut; ++d) {
    slab.offsets[d] = part.offsets[d];
    slab.shape[d] = 1;
  }
  while (true) {
    const std::int64_t end = part.offsets[cut] + part.shape[cut];
    for (std::int64_t at = part.offsets[cut]; at < end; at += slab.shape[cut]) {
      slab.offsets[cut] = at;
      slab.shape[cut] = std::min(step, end - at);
      take(std::as_const(slab));
    }
    std::size_t d = cut;
    for (; d > 0; --d) {
      if (++slab.offsets[d - 1] < part.offsets[d - 1] + part.shape[d - 1]) {
        break;
      }
      slab.offsets[d - 1] = part.offsets[d - 1];
    }
    if (d == 0) {
      return;
    }
  }
}

} // namespace tieshard

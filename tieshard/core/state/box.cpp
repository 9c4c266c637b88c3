#include "tieshard/core/state/box.h"

#include <algorithm>
#include <cstring>

#include "tieshard/core/state/box_walk.h"

namespace tieshard {

std::optional<Box> intersection(const Box& one, const Box& other) {
  Box both = one;
  for (std::size_t d = 0; d < one.shape.size(); ++d) {
    const std::int64_t end = std::min(one.offsets[d] + one.shape[d], other.offsets[d] + other.shape[d]);
    both.offsets[d] = std::max(one.offsets[d], other.offsets[d]);
    both.shape[d] = end - both.offsets[d];
    if (both.shape[d] <= 0) {
      return std::nullopt;
    }
  }
  return both;
}

BoxRuns runs_of(const Box& part, const Box& from, const Box& into, std::uint64_t element_bytes) {
  const std::size_t rank = part.shape.size();
  BoxRuns runs;
  runs.bytes = element_bytes;
  runs.counts = part.shape;
  runs.from_strides.resize(rank);
  runs.into_strides.resize(rank);
  std::uint64_t from_stride = element_bytes;
  std::uint64_t into_stride = element_bytes;
  for (std::size_t d = rank; d-- > 0;) {
    runs.from_strides[d] = from_stride;
    runs.into_strides[d] = into_stride;
    runs.from_first += static_cast<std::uint64_t>(part.offsets[d] - from.offsets[d]) * from_stride;
    runs.into_first += static_cast<std::uint64_t>(part.offsets[d] - into.offsets[d]) * into_stride;
    from_stride *= static_cast<std::uint64_t>(from.shape[d]);
    into_stride *= static_cast<std::uint64_t>(into.shape[d]);
  }
  // A dimension joins the run as long as all dimensions inside it are whole in both boxes.
  bool whole = true;
  while (!runs.counts.empty() && whole) {
    const std::size_t d = runs.counts.size() - 1;
    whole = part.shape[d] == from.shape[d] && part.shape[d] == into.shape[d];
    runs.bytes *= static_cast<std::uint64_t>(part.shape[d]);
    runs.counts.pop_back();
  }
  return runs;
}

void copy_box(const Box& part,
              const Box& from,
              const std::byte* source,
              const Box& into,
              std::byte* target,
              std::uint64_t element_bytes) {
  for_each_run(runs_of(part, from, into, element_bytes),
               [source, target](std::uint64_t read, std::uint64_t written, std::uint64_t bytes) {
                 std::memcpy(target + written, source + read, bytes);
               });
}

} // namespace tieshard

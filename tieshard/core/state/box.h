// tieshard/core/state/box.h
//
// A rectangular part of a tensor.
//
// Flow: sharded_files, block_layout -> [this] -> box_reader, reshard

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tieshard/core/base/shape.h"

namespace tieshard {

/// Elements [offsets[d], offsets[d] + shape[d]) of each dimension d. Of a 0-dim tensor both are empty, and the box is
/// its one element.
struct Box {
  Shape offsets;
  Shape shape;

  friend bool operator==(const Box&, const Box&) = default;
};

/// What both have; nothing when that is no element. Pre: the same number of dimensions
std::optional<Box> intersection(const Box& one, const Box& other);

/// Copies `part` out of `from`, whose elements lie row-major at `source`, into `into`, whose elements lie row-major at
/// `target`. Pre: `part` lies in both; elements of whole bytes
void copy_box(const Box& part,
              const Box& from,
              const std::byte* source,
              const Box& into,
              std::byte* target,
              std::uint64_t element_bytes);

} // namespace tieshard

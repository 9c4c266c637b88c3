// python/src/box_reads.h
//
// A box of a parameter (a rank's part under any placement) as slices that core reads.
//
// Flow: model_source.h -> [this] -> core/io/reader.h

#pragma once

#include <cstdint>
#include <vector>

#include "tieshard/core/plan/read_plan.h"

#include "python/src/model_source.h"

namespace tieshard::python {

/// `offset` and `size` count elements, one entry a dimension of the parameter.
struct Box {
  Shape offset;
  Shape size;

  std::int64_t numel() const;
};

/// One slice and the place of its first element in the box's row-major memory, in elements.
struct BoxRead {
  SliceRead read;
  std::int64_t place = 0;
};

/// A box may be cut in several dimensions; an encoded parameter is decoded in a wider box that is cut in one only.
struct BoxReads {
  std::vector<BoxRead> reads; ///< that fill `filled` between them; empty for an initialised parameter or an empty box
  Box filled;                 ///< the box itself, or the wider one
  int dim = -1;               ///< of `filled`: the one dimension that is cut; -1 where it is whole
};

/// @throws UsageError bad-slice where the box lies outside the parameter
BoxReads box_reads(const ModelSource& source, std::size_t parameter, const Box& box);

/// Copies `box` out of the row-major memory of `filled`, which contains it, into row-major memory of its own.
void copy_box(const std::byte* from, const Box& filled, std::byte* to, const Box& box, std::uint64_t element_bytes);

} // namespace tieshard::python

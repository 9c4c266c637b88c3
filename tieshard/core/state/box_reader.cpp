#include "tieshard/core/state/box_reader.h"

#include <algorithm>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/box_walk.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kLongRun = 64 << 10; ///< worth a read of its own
constexpr std::uint64_t kLongGap = 4 << 10;  ///< not worth reading over

void require_inside(const ShardedTensor& tensor, const Box& box) {
  bool inside = box.shape.size() == tensor.shape.size() && box.offsets.size() == tensor.shape.size();
  for (std::size_t d = 0; inside && d < box.shape.size(); ++d) {
    inside = box.offsets[d] >= 0 && box.shape[d] >= 0 && box.shape[d] <= tensor.shape[d] - box.offsets[d];
  }
  const bool whole = inside && box.shape == tensor.shape;
  if (!inside || (!whole && bits(tensor.dtype) % 8 != 0)) {
    throw UsageError({.code = Code::kBadSlice,
                      .what = "a part is asked for that the tensor does not have",
                      .where = tensor.name,
                      .why = concat("expected a part of ",
                                    name(tensor.dtype),
                                    " ",
                                    to_string(tensor.shape),
                                    " in whole bytes, got ",
                                    to_string(box.shape),
                                    " from ",
                                    to_string(box.offsets)),
                      .fix = "ask for offsets and sizes within the tensor"});
  }
}

/// Bytes between the end of a run and the beginning of the next one.
std::uint64_t gap_of(const BoxRuns& runs) {
  return runs.counts.empty() ? 0 : runs.from_strides[runs.counts.size() - 1] - runs.bytes;
}

} // namespace

void BoxReader::read(const ShardedTensor& tensor, const Box& box, std::byte* out) {
  require_inside(tensor, box);
  const auto element_bits = static_cast<std::uint64_t>(bits(tensor.dtype));
  if (element_bits % 8 != 0) { // whole, and in one block
    for (const StoredBlock& block : tensor.blocks) {
      files_.files()[block.file].file().read_at(block.offset, {out, *checked_bytes(tensor.shape, tensor.dtype)});
    }
    return;
  }
  const std::uint64_t element = element_bits / 8;
  for (const StoredBlock& block : tensor.blocks) {
    const std::optional<Box> part = intersection(block.box, box);
    if (!part) {
      continue;
    }
    const File& file = files_.files()[block.file].file();
    const BoxRuns runs = runs_of(*part, block.box, box, element);
    if (runs.counts.empty() || runs.bytes >= kLongRun || gap_of(runs) > kLongGap) {
      for_each_run(runs, [&](std::uint64_t from, std::uint64_t into, std::uint64_t bytes) {
        file.read_at(block.offset + from, {out + into, bytes});
      });
      continue;
    }
    for_each_slab(block.box, *part, std::max<std::uint64_t>(1, buffer_bytes_ / element), [&](const Box& slab) {
      buffer_.resize(static_cast<std::size_t>(numel(slab.shape)) * element);
      file.read_at(block.offset + runs_of(slab, block.box, slab, element).from_first, buffer_);
      copy_box(*intersection(slab, *part), slab, buffer_.data(), box, out, element);
    });
  }
}

} // namespace tieshard

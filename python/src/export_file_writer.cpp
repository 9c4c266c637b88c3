#include "python/src/export_file_writer.h"

#include <algorithm>
#include <optional>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/core/io/overflow.h"
#include "tieshard/core/state/box_walk.h"

namespace tieshard::python {
namespace {

constexpr std::uint64_t kPieceElements = 1 << 20; ///< converted, or written, at once

std::uint64_t item_bytes(DType dtype) {
  return static_cast<std::uint64_t>(bits(dtype)) / 8;
}

void require_convertible(const ExportPlace& to, DType dtype) {
  if (dtype != to.dtype && !convertible(dtype, to.dtype)) {
    throw UsageError({.code = Code::kNotConvertible,
                      .what = "no conversion between two dtypes",
                      .where = to.name,
                      .why = concat("expected floats, got ", name(dtype), " for ", name(to.dtype)),
                      .fix = "ask for a floating dtype, or for none"});
  }
}

} // namespace

void ExportFileWriter::write(const ExportPlace& to, const std::byte* data, DType dtype, const tieshard::Box& held) {
  const std::optional<tieshard::Box> part = intersection(held, to.box);
  if (!part) {
    return;
  }
  require_convertible(to, dtype);
  const std::uint64_t from_item = item_bytes(dtype);
  const std::uint64_t into_item = item_bytes(to.dtype);
  const BoxRuns runs = runs_of(*part, held, to.box, from_item);
  for_each_run(runs, [&](std::uint64_t from, std::uint64_t into, std::uint64_t bytes) {
    const std::uint64_t elements = bytes / from_item;
    for (std::uint64_t at = 0; at < elements; at += kPieceElements) {
      const std::uint64_t count = std::min(kPieceElements, elements - at);
      const std::byte* source = data + from + at * from_item;
      const std::uint64_t place = to.offset + (into / from_item + at) * into_item;
      if (dtype == to.dtype) {
        writer_.write(place, {source, count * into_item});
        continue;
      }
      converted_.resize(count * into_item);
      convert(source, dtype, converted_.data(), to.dtype, count);
      if (const std::int64_t infinite = count_overflowed(source, dtype, converted_.data(), to.dtype, count)) {
        overflowed_[to.name] += infinite;
      }
      writer_.write(place, converted_);
    }
  });
}

const std::map<std::string, std::int64_t>& ExportFileWriter::finish() {
  writer_.finish();
  require_mappings_intact(); // zeros in place of weights read back as they were written
  return overflowed_;
}

} // namespace tieshard::python

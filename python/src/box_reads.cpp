#include "python/src/box_reads.h"

#include <cstring>

namespace tieshard::python {
namespace {

std::uint64_t item_bytes(DType dtype) {
  return static_cast<std::uint64_t>(bits(dtype)) / 8;
}

std::int64_t product(const Shape& sizes, std::size_t begin, std::size_t end) {
  std::int64_t result = 1;
  for (std::size_t dim = begin; dim < end; ++dim) {
    result *= sizes[dim];
  }
  return result;
}

void require_inside(const ShardedParameter& parameter, const Box& box) {
  bool inside = box.offset.size() == parameter.shape.size() && box.size.size() == parameter.shape.size();
  for (std::size_t dim = 0; inside && dim < box.offset.size(); ++dim) {
    inside = box.offset[dim] >= 0 && box.size[dim] >= 0 && box.size[dim] <= parameter.shape[dim] - box.offset[dim];
  }
  if (!inside) {
    throw UsageError({.code = Code::kBadSlice,
                      .what = "a slice lies outside its tensor",
                      .where = parameter.fqn,
                      .why = concat("shape ",
                                    to_string(parameter.shape),
                                    ", got ",
                                    to_string(box.size),
                                    " elements from ",
                                    to_string(box.offset),
                                    " on"),
                      .fix = "ask for a part of the parameter's own shape"});
  }
}

/// The dimensions in which the box is not the whole parameter.
std::vector<int> cut_dims(const Box& box, const Shape& shape) {
  std::vector<int> dims;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.size[dim] != shape[dim]) {
      dims.push_back(static_cast<int>(dim));
    }
  }
  return dims;
}

/// What every slice of a stored parameter says, whatever its part.
SliceRead whole_read(const ShardedParameter& parameter, const WeightSource& from) {
  SliceRead read{.fqn = parameter.fqn,
                 .stored_name = from.values->stored_name,
                 .file = from.values->file,
                 .offset = from.values->offset,
                 .stored_dtype = from.values->dtype,
                 .range = {},
                 .local_shape = parameter.shape,
                 .encoding = from.encoding,
                 .stored_shape = from.values->shape,
                 .shape = parameter.shape};
  if (from.scales != nullptr) {
    read.scale = ScaleRead{.stored_name = from.scales->stored_name,
                           .file = from.scales->file,
                           .offset = from.scales->offset,
                           .dtype = from.scales->dtype,
                           .shape = from.scales->shape,
                           .block = from.scale_block};
  }
  return read;
}

/// Rows at equal distance, as many slices as it takes: outer dimensions that are cut, but the outermost, are counted
/// up.
void add_plain(const SliceRead& whole, const Box& box, std::vector<BoxRead>& reads) {
  const Shape& shape = whole.shape;
  const std::uint64_t item = item_bytes(whole.stored_dtype);
  std::size_t inner = shape.size(); // the innermost dimension that is cut: a row is its part with all that is within
  while (inner > 0 && box.size[inner - 1] == shape[inner - 1]) {
    --inner;
  }
  const std::size_t row_dim = inner == 0 ? 0 : inner - 1;
  std::size_t outer = row_dim; // dimensions [outer, row_dim) give the rows; those before `outer` are counted up
  while (outer > 0 && (outer == row_dim || box.size[outer] == shape[outer])) {
    --outer;
  }
  const std::int64_t within = product(shape, row_dim + (shape.empty() ? 0 : 1), shape.size());
  const std::int64_t row = shape.empty() ? 1 : box.size[row_dim] * within;
  const std::int64_t stride = shape.empty() ? 1 : shape[row_dim] * within;
  const std::int64_t rows = product(box.size, outer, row_dim);
  Shape at(box.offset.begin(), box.offset.end());
  const std::int64_t repeats = product(box.size, 0, outer);
  for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
    std::int64_t rest = repeat;
    for (std::size_t dim = outer; dim-- > 0;) {
      at[dim] = box.offset[dim] + rest % box.size[dim];
      rest /= box.size[dim];
    }
    std::int64_t first = 0;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      first = first * shape[dim] + at[dim];
    }
    SliceRead read = whole;
    read.local_shape = {rows, row};
    read.range = rows == 1 || row == stride ? StridedRange{static_cast<std::uint64_t>(first) * item,
                                                           1,
                                                           static_cast<std::uint64_t>(rows * row) * item,
                                                           static_cast<std::uint64_t>(rows * row) * item}
                                            : StridedRange{static_cast<std::uint64_t>(first) * item,
                                                           static_cast<std::uint64_t>(rows),
                                                           static_cast<std::uint64_t>(row) * item,
                                                           static_cast<std::uint64_t>(stride) * item};
    reads.push_back({.read = std::move(read), .place = repeat * rows * row});
  }
}

} // namespace

std::int64_t Box::numel() const {
  return product(size, 0, size.size());
}

BoxReads box_reads(const ModelSource& source, std::size_t parameter, const Box& box) {
  const ShardedParameter& described = source.plan().parameters()[parameter];
  const WeightSource& from = source.sources().of_parameter[parameter];
  require_inside(described, box);
  BoxReads result{.reads = {}, .filled = box};
  const std::vector<int> cut = cut_dims(box, described.shape);
  const bool plain = from.values != nullptr && from.encoding == Encoding::kPlain;
  if (!cut.empty()) {
    result.dim = cut.front();
    for (std::size_t i = 1; !plain && i < cut.size(); ++i) { // decoded whole in all dimensions but the first
      const auto dim = static_cast<std::size_t>(cut[i]);
      result.filled.offset[dim] = 0;
      result.filled.size[dim] = described.shape[dim];
    }
  }
  if (from.values == nullptr || box.numel() == 0) {
    return result;
  }
  SliceRead whole = whole_read(described, from);
  if (plain) {
    add_plain(whole, box, result.reads);
    return result;
  }
  whole.local_shape = result.filled.size;
  whole.dim = result.dim;
  if (result.dim >= 0) {
    const auto dim = static_cast<std::size_t>(result.dim);
    whole.chunk = {.offset = result.filled.offset[dim], .size = result.filled.size[dim]};
  }
  result.reads.push_back({.read = std::move(whole)});
  return result;
}

void copy_box(const std::byte* from, const Box& filled, std::byte* to, const Box& box, std::uint64_t element_bytes) {
  const std::size_t dims = box.size.size();
  const std::int64_t row = dims == 0 ? 1 : box.size.back();
  const std::int64_t rows = row == 0 ? 0 : box.numel() / row;
  for (std::int64_t index = 0; index < rows; ++index) {
    std::int64_t rest = index;
    std::int64_t place = dims == 0 ? 0 : box.offset.back() - filled.offset.back();
    std::int64_t stride = dims == 0 ? 1 : filled.size.back();
    for (std::size_t dim = dims == 0 ? 0 : dims - 1; dim-- > 0;) {
      place += (box.offset[dim] - filled.offset[dim] + rest % box.size[dim]) * stride;
      rest /= box.size[dim];
      stride *= filled.size[dim];
    }
    std::memcpy(to + static_cast<std::uint64_t>(index * row) * element_bytes,
                from + static_cast<std::uint64_t>(place) * element_bytes,
                static_cast<std::size_t>(row) * element_bytes);
  }
}

} // namespace tieshard::python

#include "tieshard/core/plan/read_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tieshard {

std::uint64_t ReadPlan::bytes() const {
  std::uint64_t total = 0;
  for (const SliceRead& read : reads) {
    total += read.stored_bytes();
  }
  return total;
}

std::uint64_t SliceRead::stored_bytes() const {
  if (encoding == Encoding::kPlain) {
    return range.bytes();
  }
  const std::uint64_t elements = static_cast<std::uint64_t>(numel(local_shape));
  return encoding == Encoding::kMxfp4 ? elements / 2 : elements * static_cast<std::uint64_t>(bits(stored_dtype)) / 8;
}

namespace {

SliceRead slice_read(const ShardedParameter& parameter,
                     const WeightSource& source,
                     ChunkRange chunk,
                     Shape local_shape) {
  const StoredTensor& stored = *source.values;
  SliceRead read{.fqn = parameter.fqn,
                 .stored_name = stored.stored_name,
                 .file = stored.file,
                 .offset = stored.offset,
                 .stored_dtype = stored.dtype,
                 .range = {},
                 .local_shape = std::move(local_shape),
                 .encoding = source.encoding,
                 .stored_shape = stored.shape,
                 .shape = parameter.shape,
                 .dim = parameter.dim,
                 .chunk = chunk};
  if (source.encoding == Encoding::kPlain) {
    read.range = strided_range(stored.shape, stored.dtype, parameter.dim, chunk);
  }
  if (source.scales != nullptr) {
    read.scale = ScaleRead{.stored_name = source.scales->stored_name,
                           .file = source.scales->file,
                           .offset = source.scales->offset,
                           .dtype = source.scales->dtype,
                           .shape = source.scales->shape,
                           .block = source.scale_block};
  }
  return read;
}

} // namespace

ReadPlan build_read_plan(const WeightSources& sources, const ShardPlan& plan, std::int64_t rank) {
  ReadPlan result;
  result.unused = sources.unused;
  result.findings = sources.findings;
  for (std::size_t i = 0; i < sources.of_parameter.size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    const WeightSource& source = sources.of_parameter[i];
    const ChunkRange chunk = plan.range(parameter, rank);
    Shape local_shape = plan.local_shape(parameter, rank);
    if (numel(local_shape) == 0) {
      continue;
    }
    if (source.values == nullptr) {
      result.inits.push_back(
          {.fqn = parameter.fqn, .rule = source.init, .shape = parameter.shape, .dim = parameter.dim, .chunk = chunk});
    } else {
      result.reads.push_back(slice_read(parameter, source, chunk, std::move(local_shape)));
    }
  }
  std::ranges::sort(result.reads, [](const SliceRead& a, const SliceRead& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  return result;
}

ReadPlan build_read_plan(const Checkpoint& checkpoint,
                         const ShardPlan& plan,
                         std::int64_t rank,
                         const WeightSourceOptions& options) {
  return build_read_plan(find_weight_sources(checkpoint, plan, options), plan, rank);
}

} // namespace tieshard

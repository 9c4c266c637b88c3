#include "tieshard/core/plan/read_plan.h"

#include <algorithm>
#include <tuple>

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

ReadPlan build_read_plan(const WeightSources& sources, const ShardPlan& plan, std::int64_t rank) {
  ReadPlan result;
  result.unused = sources.unused;
  result.findings = sources.findings;
  for (std::size_t i = 0; i < sources.of_parameter.size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    const StoredTensor& stored = *sources.of_parameter[i].values;
    const StridedRange range = strided_range(stored.shape, stored.dtype, parameter.dim, plan.range(parameter, rank));
    if (range.bytes() == 0) {
      continue;
    }
    result.reads.push_back({.fqn = parameter.fqn,
                            .stored_name = stored.stored_name,
                            .file = stored.file,
                            .offset = stored.offset,
                            .stored_dtype = stored.dtype,
                            .range = range,
                            .local_shape = plan.local_shape(parameter, rank),
                            .encoding = sources.of_parameter[i].encoding,
                            .stored_shape = stored.shape,
                            .shape = parameter.shape,
                            .dim = parameter.dim,
                            .chunk = plan.range(parameter, rank)});
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

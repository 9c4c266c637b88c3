#include "tieshard/core/plan/read_plan.h"

#include <algorithm>
#include <tuple>

#include "tieshard/core/base/units.h"
#include "tieshard/core/plan/unloadable.h"

namespace tieshard {
namespace {

/// The source of every parameter of the plan, in its order. Refuses when one has none that fits.
std::vector<const StoredTensor*> find_sources(const Checkpoint& checkpoint, const ShardPlan& plan) {
  std::vector<const StoredTensor*> sources;
  std::vector<const ShardedParameter*> missing;
  std::vector<ShapeMismatch> mismatches;
  std::vector<const StoredTensor*> untrainable;
  for (const ShardedParameter& parameter : plan.parameters()) {
    const StoredTensor* const stored = plan.ties().source(checkpoint, parameter.fqn);
    sources.push_back(stored);
    if (stored == nullptr) {
      missing.push_back(&parameter);
    } else if (stored->shape != parameter.shape) {
      mismatches.push_back({.parameter = &parameter, .stored = stored});
    } else if (!is_wide_float(stored->dtype)) {
      untrainable.push_back(stored);
    }
  }
  if (!missing.empty()) {
    refuse_missing(checkpoint, plan, missing);
  }
  if (!mismatches.empty()) {
    refuse_shapes(checkpoint, mismatches);
  }
  if (!untrainable.empty()) {
    refuse_dtypes(checkpoint, untrainable);
  }
  return sources;
}

void list_unused(const Checkpoint& checkpoint, const ShardPlan& plan, ReadPlan& reads) {
  std::uint64_t bytes = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (plan.find(tensor.name) == nullptr) {
      reads.unused.push_back(tensor.name);
      bytes += tensor.bytes;
    }
  }
  if (!reads.unused.empty()) {
    reads.findings.push_back({.level = Level::kWarning,
                              .code = Code::kUnusedTensor,
                              .what = "a stored tensor is used by no parameter",
                              .where = concat(checkpoint.directory().string(), ": ", list_names(reads.unused)),
                              .why = concat(reads.unused.size(),
                                            " of ",
                                            checkpoint.tensors().size(),
                                            " tensors, ",
                                            format_bytes(bytes),
                                            ", are not read"),
                              .fix = "check that config.json is the one that these weights were saved with"});
  }
}

} // namespace

std::uint64_t ReadPlan::bytes() const {
  std::uint64_t total = 0;
  for (const SliceRead& read : reads) {
    total += read.range.bytes();
  }
  return total;
}

ReadPlan build_read_plan(const Checkpoint& checkpoint, const ShardPlan& plan, std::int64_t rank) {
  const std::vector<const StoredTensor*> sources = find_sources(checkpoint, plan);
  ReadPlan result;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    const StoredTensor& stored = *sources[i];
    const StridedRange range = strided_range(stored.shape, stored.dtype, parameter.dim, plan.range(parameter, rank));
    if (range.bytes() == 0) {
      continue;
    }
    result.reads.push_back({.fqn = parameter.fqn,
                            .stored_name = stored.name,
                            .file = stored.file,
                            .offset = stored.offset,
                            .stored_dtype = stored.dtype,
                            .range = range,
                            .local_shape = plan.local_shape(parameter, rank)});
  }
  std::ranges::sort(result.reads, [](const SliceRead& a, const SliceRead& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  list_unused(checkpoint, plan, result);
  return result;
}

} // namespace tieshard

#include "tieshard/core/plan/weight_source.h"

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

void list_unused(const Checkpoint& checkpoint, const ShardPlan& plan, WeightSources& sources) {
  std::uint64_t bytes = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (plan.find(tensor.name) == nullptr) {
      sources.unused.push_back(tensor.name);
      bytes += tensor.bytes;
    }
  }
  if (!sources.unused.empty()) {
    sources.findings.push_back({.level = Level::kWarning,
                                .code = Code::kUnusedTensor,
                                .what = "a stored tensor is used by no parameter",
                                .where = concat(checkpoint.directory().string(), ": ", list_names(sources.unused)),
                                .why = concat(sources.unused.size(),
                                              " of ",
                                              checkpoint.tensors().size(),
                                              " tensors, ",
                                              format_bytes(bytes),
                                              ", are not read"),
                                .fix = "check that config.json is the one that these weights were saved with"});
  }
}

} // namespace

std::string_view id(Encoding encoding) {
  switch (encoding) {
    case Encoding::kPlain:
      return "plain";
    case Encoding::kTransposed:
      return "transposed";
    case Encoding::kMxfp4:
      return "mxfp4";
    case Encoding::kFp8:
      return "fp8";
  }
  return "unknown";
}

WeightSources find_weight_sources(const Checkpoint& checkpoint, const ShardPlan& plan, const WeightSourceOptions&) {
  WeightSources sources;
  for (const StoredTensor* stored : find_sources(checkpoint, plan)) {
    sources.of_parameter.push_back({.values = stored});
  }
  list_unused(checkpoint, plan, sources);
  return sources;
}

} // namespace tieshard

#include "tieshard/core/plan/mxfp4_source.h"

#include "tieshard/core/plan/quantization.h"

namespace tieshard {

std::optional<WeightSource> mxfp4_source(const Checkpoint& checkpoint,
                                         const ShardPlan& plan,
                                         const ShardedParameter& parameter) {
  if (!quantization_of(checkpoint.config()) || plan.ties().source(checkpoint, parameter.fqn) != nullptr) {
    return std::nullopt;
  }
  std::vector<std::string> names = plan.ties().aliases(parameter.fqn);
  names.insert(names.begin(), parameter.fqn);
  for (const std::string& name : names) {
    const StoredTensor* const blocks = checkpoint.find(concat(name, "_blocks"));
    const StoredTensor* const scales = checkpoint.find(concat(name, "_scales"));
    if (blocks != nullptr && scales != nullptr) {
      return WeightSource{.encoding = Encoding::kMxfp4, .values = blocks, .scales = scales};
    }
  }
  return std::nullopt;
}

} // namespace tieshard

#include "tieshard/core/plan/memory_dtype.h"

namespace tieshard {

void set_memory_dtypes(ParameterTable& table,
                       const Checkpoint& checkpoint,
                       const TieRegistry& ties,
                       std::optional<DType> asked) {
  const std::optional<DType> configured = checkpoint.config().dtype();
  const DType otherwise = configured && is_wide_float(*configured) ? *configured : DType::kBF16;
  for (ParameterInfo& parameter : table) {
    const StoredTensor* const stored = ties.source(checkpoint, ties.canonical(parameter.fqn));
    const bool wide = stored != nullptr && is_wide_float(stored->dtype);
    parameter.dtype = asked ? *asked : wide ? stored->dtype : otherwise;
  }
}

} // namespace tieshard

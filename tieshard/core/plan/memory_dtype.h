// tieshard/core/plan/memory_dtype.h
//
// The dtype in which each parameter lies in memory after a load.
//
// Flow: ties, checkpoint -> [this] -> shard_plan.h; asked by doctor and cli before they plan

#pragma once

#include <optional>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard {

/// Sets the dtype of every parameter of `table`: `asked` where there is one, else that of the stored tensor which gives
/// it its bytes. A parameter that is quantised or that no file holds gets the config's dtype, BF16 where that is none
/// to train in.
/// Pre: `asked` is F16, BF16, F32 or F64.
void set_memory_dtypes(ParameterTable& table,
                       const Checkpoint& checkpoint,
                       const TieRegistry& ties,
                       std::optional<DType> asked);

} // namespace tieshard

// tieshard/core/doctor/value_check.h
//
// Looks at the values that a load would read, for what no training survives: NaN, infinity, and weights that are zeros.
//
// Flow: doctor.cpp -> [this] -> value_budget.h, base/file.h, io/finite.h, io/not_finite.h

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/doctor/finding_list.h"

namespace tieshard {

/// Stored values, and what a load makes of them.
struct CheckedTensor {
  const StoredTensor* stored = nullptr;
  DType read_as = DType::kF32;   ///< mostly stored->dtype; F8_E8M0 for exponents that are stored as U8
  DType loaded_as = DType::kF32; ///< a value that this dtype has not is infinite in memory
  bool first = false;            ///< read before the others: scales; 1-D tensors are, too
};

struct ValueCheckOptions {
  int threads = 1;
  std::uint64_t buffer_bytes = 4 << 20;  ///< per thread
  std::optional<std::uint64_t> budget{}; ///< bytes to look at in all (value_budget.h); nothing: all
};

/// Stored bytes of the tensors whose dtype can hold NaN.
struct ValueCheckCount {
  std::uint64_t looked_at = 0; ///< holes of sparse files count: they are zeros without being read
  std::uint64_t not_read = 0;
};

/// Reads `tensors` in file order, holes of sparse files left out. Adds one warning not-finite that names each tensor
/// with its first such element, and one warning all-zero that names each tensor which was looked at whole and is zeros
/// alone; biases may be. Tensors of dtypes that have no NaN are not read.
/// Pre: tensors without a wide float in `loaded_as` are those that have none in `read_as`.
/// @throws PeerError io-failed
ValueCheckCount check_values(const Checkpoint& checkpoint,
                             std::vector<CheckedTensor> tensors,
                             const ValueCheckOptions& options,
                             FindingList& findings);

} // namespace tieshard

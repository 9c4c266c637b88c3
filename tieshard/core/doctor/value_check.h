// tieshard/core/doctor/value_check.h
//
// Looks at every value that a load would read, for what no training survives: NaN and infinity.
//
// Flow: doctor.cpp -> [this] -> base/file.h, io/finite.h, io/not_finite.h

#pragma once

#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/doctor/finding_list.h"

namespace tieshard {

/// Stored values, and what a load makes of them.
struct CheckedTensor {
  const StoredTensor* stored = nullptr;
  DType read_as = DType::kF32;   ///< mostly stored->dtype; F8_E8M0 for exponents that are stored as U8
  DType loaded_as = DType::kF32; ///< a value that this dtype has not is infinite in memory
};

struct ValueCheckOptions {
  int threads = 1;
  std::uint64_t buffer_bytes = 4 << 20; ///< per thread
};

/// Reads `tensors` in file order, holes of sparse files left out, and adds one warning not-finite that names each
/// tensor with its first such element. Tensors of dtypes that have no NaN are not read.
/// Pre: tensors without a wide float in `loaded_as` are those that have none in `read_as`.
/// @throws PeerError io-failed
void check_values(const Checkpoint& checkpoint,
                  std::vector<CheckedTensor> tensors,
                  const ValueCheckOptions& options,
                  FindingList& findings);

} // namespace tieshard

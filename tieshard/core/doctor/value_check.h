// tieshard/core/doctor/value_check.h
//
// Looks at every value that a load would read, for what no training survives: NaN and infinity.
//
// Flow: doctor.cpp -> [this] -> base/file.h, io/finite.h

#pragma once

#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/doctor/finding_list.h"

namespace tieshard {

struct ValueCheckOptions {
  int threads = 1;
  std::uint64_t buffer_bytes = 4 << 20; ///< per thread
};

/// Reads `tensors` in file order, holes of sparse files left out, and adds one warning not-finite that names each
/// tensor with its first such element. Tensors of dtypes that have no NaN are not read.
/// @throws PeerError io-failed
void check_values(const Checkpoint& checkpoint,
                  std::vector<const StoredTensor*> tensors,
                  const ValueCheckOptions& options,
                  FindingList& findings);

} // namespace tieshard

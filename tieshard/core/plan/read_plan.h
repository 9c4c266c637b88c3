// tieshard/core/plan/read_plan.h
//
// Which bytes of which files a rank reads: each storage once, this rank's slice only.
//
// Flow: checkpoint, ties, shard_plan -> [this] -> io/reader.h, runtime/load

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/strided_range.h"

namespace tieshard {

/// One rank's slice of one stored tensor.
struct SliceRead {
  std::string fqn;          ///< canonical parameter that it fills
  std::string stored_name;  ///< name in the file: the canonical's or an alias's
  std::size_t file = 0;     ///< index into Checkpoint::files()
  std::uint64_t offset = 0; ///< first byte of the whole tensor in that file
  DType stored_dtype = DType::kF32;
  StridedRange range; ///< within the tensor
  Shape local_shape;
};

struct ReadPlan {
  std::vector<SliceRead> reads;     ///< by file, then by offset; empty slices are left out
  std::vector<std::string> unused;  ///< stored tensors that no parameter uses (aliases of a read storage are used)
  std::vector<Diagnostic> findings; ///< warning unused-tensor

  /// Bytes of the rank's slices, in their stored dtypes.
  std::uint64_t bytes() const;
};

/// @throws InputError missing-parameter (one error lists every missing name; `fix` names --tie where a stored tensor of
///         the same shape could be meant), shape-mismatch (stored and expected shape of every offender),
///         dtype-not-loadable (a stored dtype that is not F16, BF16, F32 or F64)
ReadPlan build_read_plan(const Checkpoint& checkpoint, const ShardPlan& plan, std::int64_t rank);

} // namespace tieshard

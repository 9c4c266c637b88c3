// tieshard/core/plan/read_plan.h
//
// Which bytes of which files a rank reads: each storage once, this rank's slice only.
//
// Flow: checkpoint, ties, shard_plan -> [this] -> io/reader.h, runtime/load

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/strided_range.h"
#include "tieshard/core/plan/weight_source.h"

namespace tieshard {

/// The scales of an encoded tensor: read whole, or as far as the slice needs them.
struct ScaleRead {
  std::string stored_name;
  std::size_t file = 0;
  std::uint64_t offset = 0; ///< first byte of the whole tensor in that file
  DType dtype = DType::kF32;
  Shape shape;
  ScaleBlock block{}; ///< of kFp8: the elements that share one scale
};

/// One rank's slice of one stored tensor.
struct SliceRead {
  std::string fqn;          ///< canonical parameter that it fills
  std::string stored_name;  ///< name in the file: the canonical's or an alias's
  std::size_t file = 0;     ///< index into Checkpoint::files()
  std::uint64_t offset = 0; ///< first byte of the whole tensor in that file
  DType stored_dtype = DType::kF32;
  StridedRange range; ///< within the tensor; of kPlain only
  Shape local_shape;
  Encoding encoding = Encoding::kPlain;
  Shape stored_shape{};             ///< of the whole stored tensor
  Shape shape{};                    ///< of the whole parameter
  int dim = -1;                     ///< of the parameter; -1: all of it
  ChunkRange chunk{};               ///< of `dim`
  std::optional<ScaleRead> scale{}; ///< of kMxfp4 and kFp8

  /// Bytes that the slice's elements take in the file, scales left out.
  std::uint64_t stored_bytes() const;
};

/// A parameter's part that no file holds.
struct InitSlice {
  std::string fqn;
  InitRule rule;
  Shape shape; ///< of the whole parameter: an element's value depends on its place in it, not on the ranks
  int dim = -1;
  ChunkRange chunk{};
};

struct ReadPlan {
  std::vector<SliceRead> reads;     ///< by file, then by offset; empty slices are left out
  std::vector<InitSlice> inits;     ///< in registration order; empty slices are left out
  std::vector<std::string> unused;  ///< stored tensors that no parameter uses (aliases of a read storage are used)
  std::vector<Diagnostic> findings; ///< those of WeightSources

  /// Bytes of the rank's slices, in their stored dtypes.
  std::uint64_t bytes() const;
};

/// What `rank` reads. Cheap enough to be made for each of many ranks.
ReadPlan build_read_plan(const WeightSources& sources, const ShardPlan& plan, std::int64_t rank);

/// Both steps for one rank. @throws whatever find_weight_sources throws
ReadPlan build_read_plan(const Checkpoint& checkpoint,
                         const ShardPlan& plan,
                         std::int64_t rank,
                         const WeightSourceOptions& options = {});

} // namespace tieshard

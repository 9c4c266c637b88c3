// tieshard/core/plan/training_memory.h
//
// How much memory a rank will have resident at most while it trains, term by term. docs/memory.md explains the formula.
//
// Flow:   shard_plan, families/activation_sizes.h -> [this] -> cli/plan
// Source: runtime/fsdp, runtime/models and runtime/tensors/heap_allocator.h, whose order of events this follows;
//         measured beside it by tests/python/test_training_memory.py.
//
// Tensors lie in two pools. Small ones are in a heap that never shrinks: what it held at its fullest stays resident.
// Large ones lie in mappings, which come and go. Each pool is fullest at a moment of its own, and the peak is their
// sum.

#pragma once

#include <cstdint>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/families/activation_sizes.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

/// What a step is told, as `tieshard train` is.
struct TrainingStep {
  std::int64_t sequence = 512; ///< tokens
  std::int64_t batch = 1;      ///< sequences of a rank
  DType compute_dtype = DType::kF32;
  bool reshard_after_forward = true;
};

/// Bytes of one rank at its peak. Terms that are not at their largest at that moment stand with what they are then.
struct TrainingMemory {
  std::uint64_t process = 0;          ///< the program and its libraries, kernels that were built, threads
  std::uint64_t shards = 0;           ///< of parameters
  std::uint64_t moments = 0;          ///< of AdamW, both
  std::uint64_t gradients = 0;        ///< of the shards
  std::uint64_t whole_parameters = 0; ///< the root unit, and units in flight or kept
  std::uint64_t whole_gradients = 0;  ///< of the same, before they are reduced
  std::uint64_t activations = 0;      ///< kept for the backward, and at work in it
  std::uint64_t loss = 0;             ///< logits and softmax of one piece
  std::uint64_t holes = 0;            ///< of the heap, that no tensor fits into

  std::uint64_t total() const;
};

/// Resident memory of the program when it has trained a model of no size. Measured with LibTorch 2.13 for CPUs: from
/// 110 to 213 MiB. It depends on how large the pieces are in which the kernel maps the libraries' files, and is 30 MiB
/// less in a rank that `--ranks` forked.
inline constexpr std::uint64_t kProcessBytes = std::uint64_t{160} << 20;

/// The heap's part that holes take: measured between a thirtieth and a sixteenth of what tensors take in it.
inline constexpr double kHoles = 1.0 / 20;

/// Tensors from here on lie in mappings of their own, smaller ones in the heap.
inline constexpr std::uint64_t kLargeTensorBytes = std::uint64_t{32} << 20;

/// Of the float32 logits that exist at once, unless one row takes more.
inline constexpr std::uint64_t kLogitsPieceBytes = std::uint64_t{32} << 20;

/// Of rank 0, whose parts are the largest, with ranks that share memory. Figures too large for 64 bits are the largest
/// that fit.
/// @param plan  its dtypes are those of shards and their gradients; AdamW's moments are float32 for narrower ones
TrainingMemory predict_training_memory(const ShardPlan& plan, const ActivationSizes& sizes, const TrainingStep& step);

} // namespace tieshard

// tieshard/core/state/block_layout.h
//
// The file of one rank in a sharded checkpoint: its blocks of tensors, and where in the whole tensors they lie.
//
// Flow:   runtime/state/train_checkpoint, reshard -> [this] -> shard_file_writer
// Source: PyTorch DCP's Hugging Face layout (HuggingFaceStorageWriter, save_distributed=True), which its
//         HuggingFaceStorageReader loads at any world size: shard-RRRRR-model-KKKKK-of-NNNNN.safetensors with
//         DCP_SHARDING_INFO in its __metadata__. Beside "saved_offsets" each entry has "shape", the whole tensor's,
//         which DCP ignores and nothing else states.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/plan/shard_spec.h"
#include "tieshard/core/state/box.h"

namespace tieshard {

/// One rank's part of a tensor.
struct TensorBlock {
  std::string name;
  DType dtype = DType::kF32;
  Shape whole;              ///< of the whole tensor
  Box box;                  ///< a size may be 0: the rank has nothing of it, and says so
  bool states_whole = true; ///< false: `whole` is the least that holds all blocks, which the file must not state
};

/// The block of `chunk` of dimension `dim`; -1: all of it.
TensorBlock block_of(const std::string& name, DType dtype, const Shape& whole, int dim, ChunkRange chunk);

/// "shard-00001-model-00002-of-00002.safetensors". @param rank from 0  @param part from 0, below parts
std::string shard_file_name(std::int64_t rank, int part, int parts);

/// @param id  of the save, the same in all of its files: metadata tieshard_id
/// @throws as layout_safetensors
SafetensorsLayout layout_shard_file(const std::vector<TensorBlock>& blocks, const std::string& id);

} // namespace tieshard

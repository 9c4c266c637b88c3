// tieshard/core/state/shard_file_writer.h
//
// One rank's blocks from memory into its file.
//
// Flow: runtime/state/train_checkpoint -> [this] -> hashed_file

#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "tieshard/core/state/block_layout.h"
#include "tieshard/core/state/hashed_file.h"

namespace tieshard {

/// A block and its elements, row-major, in its dtype.
struct BlockInMemory {
  TensorBlock block;
  const std::byte* data = nullptr; ///< may be null for an empty block
};

/// Bytes that the file will take. Pure.
std::uint64_t shard_file_bytes(const std::vector<BlockInMemory>& blocks, const std::string& id);

/// Writes and syncs `directory`/`name`. @throws PeerError disk-full, io-failed; as layout_shard_file
FileRecord write_shard_file(const std::filesystem::path& directory,
                            const std::string& name,
                            const std::vector<BlockInMemory>& blocks,
                            const std::string& id);

} // namespace tieshard

// tieshard/core/state/block_collector.h
//
// Puts tensors together from the blocks of files, one file after another.
//
// Flow: sharded_files -> [this] -> sharding_info, block_coverage

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/core/state/sharded_files.h"
#include "tieshard/core/state/sharding_info.h"

namespace tieshard {

class BlockCollector {
 public:
  /// @param directory  for errors
  explicit BlockCollector(const std::filesystem::path& directory) : where_(directory.string()) {}

  /// Takes the blocks of the next file: where DCP_SHARDING_INFO puts them; where a file has none, at zero.
  /// @throws InputError bad-entry, shape-mismatch, tie-dtype-differs
  void add(const SafetensorsFile& file);

  /// The tensors, sorted by name. At most once. @throws InputError block-missing, block-overlap, size-overflow,
  /// bad-entry
  std::vector<ShardedTensor> finish();

 private:
  /// A tensor of which not all blocks are known yet.
  struct Growing {
    ShardedTensor tensor;
    bool stated = false;   ///< whether tensor.shape is what a file says; else the least that holds the blocks
    std::size_t first = 0; ///< file that the first block is in
  };

  void add_block(const TensorEntry& entry, BlockPlace place, std::uint64_t offset);
  void require_alike(const Growing& growing, const TensorEntry& entry, const BlockPlace& place) const;
  void require_inside(const Growing& growing, const Shape& whole, const Shape& end) const;
  [[noreturn]] void contradict(const Growing& growing,
                               Code code,
                               const std::string& one,
                               const std::string& other) const;
  ShardedTensor complete(Growing growing) const;

  std::string where_;
  std::vector<std::string> names_; ///< of the files
  std::vector<Growing> growing_;
  std::unordered_map<std::string, std::size_t> numbers_; ///< by tensor name, into growing_
};

} // namespace tieshard

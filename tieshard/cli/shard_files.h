// tieshard/cli/shard_files.h
//
// The parts of each rank as safetensors files in a directory of their own.
//
// Flow: load -> [this] -> checkpoint/safetensors_writer.h

#pragma once

#include <cstdint>
#include <filesystem>

#include "tieshard/core/io/local_shards.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard::cli {

/// A directory that gets its name when all that belongs in it is written; until then it stands beside that name, with
/// ".partial" at its end.
class ShardDirectory {
 public:
  /// @throws InputError output-exists when the name is taken; PeerError io-failed
  explicit ShardDirectory(std::filesystem::path name);
  ShardDirectory(const ShardDirectory&) = delete;
  ShardDirectory& operator=(const ShardDirectory&) = delete;

  /// Removes it when it was not published.
  ~ShardDirectory();

  /// Writes rank-00000-of-00002.safetensors. Its metadata says rank, ranks and, as a JSON object, the dim of each
  /// parameter. May be called from several processes.
  /// @throws PeerError disk-full, io-failed
  void write(const LocalShards& loaded, const ShardPlan& plan, std::int64_t rank) const;

  /// Gives it its name. @throws PeerError io-failed
  void publish();

 private:
  std::filesystem::path name_;
  std::filesystem::path partial_;
  bool published_ = false;
};

} // namespace tieshard::cli

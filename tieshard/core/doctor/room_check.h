// tieshard/core/doctor/room_check.h
//
// Whether this machine has room for the load, and the disk for what a run writes. Notes: ranks may run elsewhere.
//
// Flow: doctor.cpp -> [this] -> io/local_shards.h, base/process_memory.h

#pragma once

#include <cstdint>
#include <filesystem>

#include "tieshard/core/doctor/finding_list.h"

namespace tieshard {

/// What is free where the diagnosis runs.
struct Room {
  std::uint64_t memory = 0; ///< bytes that processes may add; 0: not known
  std::uint64_t disk = 0;   ///< bytes of the directory's file system
  bool disk_known = false;
};

Room room_at(const std::filesystem::path& directory);

/// What a load and a run need.
struct Need {
  std::int64_t ranks = 1;
  std::uint64_t rank_bytes = 0;   ///< of a load, the largest rank's
  std::uint64_t export_bytes = 0; ///< of the model as it is stored
  std::uint64_t save_bytes = 0;   ///< of a training checkpoint with AdamW's two moments in float32
};

/// Adds a note host-memory where all ranks on this machine would need more than it has, and a note disk-full where an
/// export or a training checkpoint beside the model would not fit.
void check_room(const std::filesystem::path& directory, const Need& need, const Room& room, FindingList& findings);

} // namespace tieshard

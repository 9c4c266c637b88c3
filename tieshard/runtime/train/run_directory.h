// tieshard/runtime/train/run_directory.h
//
// The directory of a run: made, locked and checked before anything is loaded.
//
// Flow: train_config -> [this] -> trainer

#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/directory_lock.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/train/train_config.h"

namespace tieshard {

/// RUN/checkpoints
std::filesystem::path checkpoints_of(const std::filesystem::path& run);

/// What a run begins with.
struct RunDirectory {
  std::optional<DirectoryLock> lock;           ///< of rank 0: no other job writes there
  std::optional<std::filesystem::path> resume; ///< the checkpoint to go on from; nothing: a run from the start
  std::vector<Diagnostic> findings;            ///< on rank 0: newer checkpoints that were passed over
};

/// Finds the checkpoint, hashes compared where config.verify says so, makes config.out and writes config.json there. It
/// may not hold a run already, unless the run goes on from it: then files of the earlier job stay. A collective; every
/// rank must call it.
/// @throws InputError output-exists (a run is there and is not the one to go on from), directory-in-use, bad-flag (it
///         cannot be made or written), and as find_checkpoint for what is to be gone on from
RunDirectory open_run_directory(const TrainConfig& config, const DeviceMesh& mesh);

/// Refuses, on one process, what open_run_directory would refuse, and makes and writes nothing.
/// @returns the checkpoint that the run would go on from; nothing for a run from the start
/// @throws InputError output-exists, bad-flag, and as find_checkpoint
std::optional<std::filesystem::path> check_run_directory(const TrainConfig& config);

} // namespace tieshard

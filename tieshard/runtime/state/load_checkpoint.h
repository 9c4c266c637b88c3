// tieshard/runtime/state/load_checkpoint.h
//
// The state of a run back into a sharded module and its optimizer, on any number of ranks.
//
// Flow:   core/state (find_checkpoint, sharded_files, box_reader) -> [this] -> runtime/train
// Source: torch.distributed.checkpoint's load, in what it is for.

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tieshard/core/state/find_checkpoint.h"
#include "tieshard/core/state/sharded_files.h"
#include "tieshard/core/state/trainer_state.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

struct LoadedCheckpoint {
  std::filesystem::path directory;
  Manifest manifest;
  TrainerState trainer;
  std::vector<Diagnostic> findings; ///< checkpoints that were passed over; optimizer state that nothing takes
  double seconds = 0;
};

/// Puts a checkpoint's values into the managed parameters of `state`, this rank's slices of them, and its moments and
/// counters into `optimizer`, which holds those parameters. Random generators are the caller's to set. A collective;
/// every rank must call it, resharded, with a path to the same directory.
///
/// @param given      as find_checkpoint
/// @param optimizer  its name as the manifest has it: "adamw"
/// @throws InputError no-checkpoint, checkpoint-incomplete, manifest-malformed, checkpoint-mismatch (lists what
///         differs), and as ShardedFiles::open; PeerError io-failed, peer-failed; UsageError optimizer-parameter
LoadedCheckpoint load_checkpoint(const FsdpState& state,
                                 torch::optim::Optimizer& optimizer,
                                 const std::string& optimizer_name,
                                 const std::filesystem::path& given,
                                 Verify verify = Verify::kSizes);

} // namespace tieshard

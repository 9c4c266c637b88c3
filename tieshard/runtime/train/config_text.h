// tieshard/runtime/train/config_text.h
//
// A run's configuration as names and values, so that ranks that were told different things are found before anything is
// loaded.
//
// Flow: train_config -> [this] -> mesh/same_on_ranks; trainer

#pragma once

#include <vector>

#include "tieshard/runtime/mesh/same_on_ranks.h"
#include "tieshard/runtime/train/train_config.h"

namespace tieshard {

/// Every field that has to be equal on all ranks, by its flag's name: whatever decides which numbers a run computes or
/// which collectives it makes. Left out is what a rank may have for itself: paths (hosts mount the same files at
/// different places; see describe_inputs), threads, and how its reader uses memory.
///
/// A new field of TrainConfig gets a line here; tests/house/test_train_config.py names those that have none.
std::vector<NamedText> describe(const TrainConfig& config);

/// Those of saving and going on, which decide no number of the run.
std::vector<NamedText> describe_saves(const TrainConfig& config);

/// What --model and --data are, wherever they lie: config.json's bytes, the token file's size and its first bytes.
/// Cheap and not complete: equal weights files are not looked for, since each rank reads the slices of its own. A file
/// that cannot be read is described as such; whoever opens it says more.
std::vector<NamedText> describe_inputs(const TrainConfig& config);

/// The weights of --model, for the checkpoints of a run that leave them out: how many files and bytes, and a hash of
/// each one's name, size, first and last bytes, which are header and values.
NamedText describe_weights(const TrainConfig& config);

/// Refuses, on every rank and before anything is opened, ranks whose configurations or inputs differ. Every rank of
/// `mesh` must call it. @throws InputError bad-environment, naming each flag, the ranks and what they were given
void require_same_config_on_ranks(const TrainConfig& config, const DeviceMesh& mesh);

} // namespace tieshard

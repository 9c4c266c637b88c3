// tieshard/core/state/recorded_state.h
//
// Whether manifest.json, trainer.json and the headers of the shard files of a checkpoint say the same.
//
// Flow:   find_checkpoint, reshard, export_checkpoint -> [this] -> manifest, trainer_state, sharded_files
// Source: docs/checkpoints.md, what makes a checkpoint complete.

#pragma once

#include <filesystem>

#include "tieshard/core/state/manifest.h"
#include "tieshard/core/state/sharded_files.h"

namespace tieshard {

/// What the manifest says of parameters and moments is what the files hold, and they hold nothing else.
/// @throws InputError checkpoint-incomplete (names each tensor that is not there, is another one, or is not recorded),
///         saves-mixed (the ids differ)
void require_as_recorded(const ShardedFiles& files, const Manifest& manifest);

/// Opens trainer.json and the shard files (headers only) and holds them, and the directory's name where it is
/// step-NNNNNNNNN, against the manifest.
/// @throws InputError checkpoint-incomplete, manifest-malformed (trainer.json), and as require_as_recorded and
///         ShardedFiles::open; PeerError io-failed
void require_recorded_state(const std::filesystem::path& directory, const Manifest& manifest);

} // namespace tieshard

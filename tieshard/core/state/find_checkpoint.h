// tieshard/core/state/find_checkpoint.h
//
// Whether a training checkpoint is what its manifest says, and the newest one of a run that is.
//
// Flow: runtime/train, runtime/state, reshard, export -> [this] -> manifest, checkpoint_store, recorded_state

#pragma once

#include <filesystem>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/manifest.h"

namespace tieshard {

/// How closely a checkpoint is looked at.
enum class Verify {
  kSizes,  ///< manifest, and each file's presence and size
  kHashes, ///< and each file's bytes
};

/// Reads and checks `directory`'s manifest. A *.safetensors file that the manifest does not name counts as damage: a
/// reader of the directory would take it in.
/// @throws InputError no-checkpoint (no manifest.json), manifest-malformed, checkpoint-incomplete (names each bad
/// file);
///         PeerError io-failed
Manifest open_manifest(const std::filesystem::path& directory, Verify verify);

struct FoundCheckpoint {
  std::filesystem::path directory{};
  Manifest manifest{};
  std::vector<Diagnostic> findings{}; ///< as warnings: newer ones that were passed over, each with its reason
};

/// The checkpoint to go on from. `given` is one checkpoint, which has to be complete; or a run, or its checkpoints/: of
/// these the newest (the highest step) that is complete. Complete is what open_manifest takes and whose parts agree
/// (recorded_state.h). One that is removed meanwhile, by a run that saves, is no finding: the newest is looked for
/// again.
/// @throws InputError no-checkpoint (nothing complete; each one's reason is given), and for a checkpoint as
/// open_manifest and require_recorded_state
FoundCheckpoint find_checkpoint(const std::filesystem::path& given, Verify verify);

} // namespace tieshard

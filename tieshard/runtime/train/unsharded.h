// tieshard/runtime/train/unsharded.h
//
// A whole model on one rank, without fully_shard: the lower rungs of the ladder that tells a wrong load from a wrong
// sharding.
//
// Flow: resolved model -> [this] -> cli/runtime/forward_verb, whose numbers doctor --try compares

#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/train/parallelize.h"

namespace tieshard {

/// How the parameters come to their bytes.
enum class Materialization {
  kEager, ///< the module is built with bytes, and values are copied into them: it never was on the meta device
  kMeta,  ///< built on the meta device and filled by load_shards(), as before sharding
};

struct UnshardedModel {
  Checkpoint checkpoint;
  std::shared_ptr<LanguageModel> model;
  std::vector<Diagnostic> findings; ///< of checkpoint, names, ties and load: warnings and notes
};

/// The model of `directory` in options.param_dtype on mesh.device(), tied as the registry says. Of `options` it takes
/// resolve, param_dtype and load. Eager needs the model twice while it is copied, as far as its files cannot be mapped.
/// @throws whatever resolve_model, make_model, load_local_shards and load_shards throw; UsageError wrong-state on a
/// mesh
///         of several ranks
UnshardedModel load_unsharded(const std::filesystem::path& directory,
                              const DeviceMesh& mesh,
                              const ParallelizeOptions& options,
                              Materialization materialization);

} // namespace tieshard

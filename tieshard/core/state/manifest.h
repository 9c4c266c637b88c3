// tieshard/core/state/manifest.h
//
// manifest.json: what a training checkpoint is, and by which it is known to be complete.
//
// Flow:   runtime/state/train_checkpoint, reshard -> [this] -> checkpoint_store, resume, export
// Source: docs/checkpoints.md, which states every member.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/shape.h"
#include "tieshard/core/state/hashed_file.h"

namespace tieshard {

/// What the optimizer keeps for one parameter. Moments are tensors `<fqn>.<moment>`, shaped and cut as the parameter.
struct OptimizerRecord {
  std::vector<std::string> moments{};             ///< "exp_avg", "exp_avg_sq", "momentum_buffer", "master_weight", ..
  std::map<std::string, std::int64_t> counters{}; ///< "step", "rounded_steps"

  friend bool operator==(const OptimizerRecord&, const OptimizerRecord&) = default;
};

/// One canonical parameter.
struct ParameterRecord {
  std::string fqn{};
  DType dtype = DType::kF32;
  Shape shape{};
  int dim = -1; ///< that it is sharded on; -1: replicated, stored once
  bool trainable = true;
  bool stored = true; ///< false: the base model's, beside an adapter; its values are not in the checkpoint
  std::optional<OptimizerRecord> optimizer{}; ///< nothing: no state yet (frozen, or never had a gradient)

  friend bool operator==(const ParameterRecord&, const ParameterRecord&) = default;
};

/// Another name of a parameter, and why it is one.
struct TieRecord {
  std::string canonical{};
  std::string alias{};
  std::string evidence{}; ///< id(TieEvidence)

  friend bool operator==(const TieRecord&, const TieRecord&) = default;
};

struct MeshAxisRecord {
  std::string name{};
  std::int64_t size = 1;

  friend bool operator==(const MeshAxisRecord&, const MeshAxisRecord&) = default;
};

struct Manifest {
  static constexpr std::int64_t kVersion = 1;
  static constexpr std::string_view kFileName = "manifest.json";

  std::string id{}; ///< of the save: 32 hexadecimal digits, in every shard file too
  std::int64_t step = 0;
  std::vector<MeshAxisRecord> mesh{};        ///< outermost first; of the ranks that saved
  std::string optimizer{};                   ///< "adamw", "sgd", "lion"; empty: none
  std::vector<ParameterRecord> parameters{}; ///< in registration order
  std::vector<TieRecord> ties{};
  std::vector<FileRecord> files{}; ///< all others of the directory, by name

  /// The parameter of this canonical name, or null.
  const ParameterRecord* find(std::string_view fqn) const;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// Indented, with a final newline; the same bytes for the same manifest.
std::string to_json(const Manifest& manifest);

/// @throws InputError manifest-malformed (also for a later version), and as parse_json
Manifest parse_manifest(std::string_view text, const std::string& where);

} // namespace tieshard

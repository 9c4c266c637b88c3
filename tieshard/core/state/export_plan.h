// tieshard/core/state/export_plan.h
//
// Which tensors leave a checkpoint for a plain directory, in which shape and dtype, and in which file.
//
// Flow:   sharded_files, parameter_names, core/families -> [this] -> export_checkpoint
// Source: transformers save_pretrained (file names).

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/state/export_checkpoint.h"
#include "tieshard/core/state/parameter_names.h"

namespace tieshard {

/// A tensor on its way out.
struct ExportedTensor {
  const ShardedTensor* tensor = nullptr;
  DType dtype = DType::kF32; ///< afterwards
  Shape shape;               ///< afterwards; only dimension 0 may be smaller than before
};

struct ExportedFile {
  std::string name;
  SafetensorsLayout layout;
  std::vector<ExportedTensor> tensors; ///< in the order of the layout
};

struct ExportPlan {
  std::vector<ExportedFile> files;
  std::vector<std::string> left_out;  ///< optimizer state, and aliases that a manifest names
  std::vector<Diagnostic> findings{}; ///< notes unused-tensor
};

/// What floats become where the caller asks for nothing: config.json's dtype; bfloat16 for a quantised model that says
/// none, whose values training has decoded; else nothing, they stay.
std::optional<DType> exported_dtype(const HfConfig& config);

/// @param manifest  may be null
/// @param config    null: neither shapes nor ties are known
/// @throws InputError missing-parameter (the configuration's model has more, or a checkpoint of an adapter lacks its
///         base), shape-mismatch, no-weights
ExportPlan plan_export(const ShardedFiles& files,
                       const Manifest* manifest,
                       const HfConfig* config,
                       const ExportCheckpointOptions& options);

/// model.safetensors.index.json of these files.
std::string index_of(const std::vector<ExportedFile>& files);

} // namespace tieshard

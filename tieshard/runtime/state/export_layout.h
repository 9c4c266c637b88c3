// tieshard/runtime/state/export_layout.h
//
// Which tensor goes to which file of an export, and where. Pure; equal on every rank.
//
// Flow: shard_plan, the source checkpoint -> [this] -> hf_export

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

/// One file of the export.
struct ExportFile {
  std::string name; ///< "model.safetensors" or "model-00001-of-00003.safetensors"
  SafetensorsLayout layout;
};

/// Files in order; each canonical parameter of `plan` in exactly one, in `dtype`, or else in the dtype of its source
/// tensor (the parameter's own where the source has none).
std::vector<ExportFile> layout_export(const ShardPlan& plan,
                                      const Checkpoint& source,
                                      std::uint64_t max_shard_bytes,
                                      std::optional<DType> dtype = {});

/// model.safetensors.index.json of several files; for one file it is not written.
std::string export_index(const std::vector<ExportFile>& files);

/// config.json of the export: the source's bytes, with the tie flag set where what was trained differs from what it
/// says (untied after a tie-conflict, or tied on a file's word), without quantization_config (what is written is not
/// quantised), and with `dtype` where one is given.
std::string export_config(const ShardPlan& plan, const Checkpoint& source, std::optional<DType> dtype = {});

} // namespace tieshard

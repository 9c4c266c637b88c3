// tieshard/runtime/state/export_layout.h
//
// Which tensor goes to which file of an export, and where. Pure; equal on every rank.
//
// Flow: shard_plan, the source checkpoint -> [this] -> hf_export

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

/// A tensor whose bytes are taken as they are stored.
struct CopiedTensor {
  std::filesystem::path file;
  std::uint64_t offset = 0; ///< first byte in it
};

/// One file of the export.
struct ExportFile {
  std::string name; ///< "model.safetensors" or "model-00001-of-00003.safetensors"
  SafetensorsLayout layout;
  std::map<std::string, CopiedTensor> copied{}; ///< by name; all other tensors of the layout are parameters
};

/// Files in order; each canonical parameter of `plan` in exactly one, in `dtype`, or else in the dtype of its source
/// tensor: config.json's, or bfloat16, for one that is stored quantised; the parameter's own where the source has none.
/// @param kept  parameters that leave as the MXFP4 blocks and scales that `source` stores (unchanged_mxfp4())
std::vector<ExportFile> layout_export(const ShardPlan& plan,
                                      const Checkpoint& source,
                                      std::uint64_t max_shard_bytes,
                                      std::optional<DType> dtype = {},
                                      const std::set<std::string>& kept = {});

/// model.safetensors.index.json of several files; for one file it is not written.
std::string export_index(const std::vector<ExportFile>& files);

/// config.json of the export: the source's bytes, with the tie flag set where what was trained differs from what it
/// says (untied after a tie-conflict, or tied on a file's word), without quantization_config where nothing that is
/// written is quantised, and with `dtype` where one is given. Where some of the modules that were quantised are `kept`,
/// the others stand in its modules_to_not_convert.
std::string export_config(const ShardPlan& plan,
                          const Checkpoint& source,
                          std::optional<DType> dtype = {},
                          const std::set<std::string>& kept = {});

} // namespace tieshard

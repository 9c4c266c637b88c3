// tieshard/runtime/state/hf_export.h
//
// A Hugging Face checkpoint from a sharded model, without gathering it: every rank writes long runs of the final files,
// of rows that the ranks exchange window by window.
//
// Flow:   fsdp_state, the checkpoint that was loaded -> [this] -> a directory that transformers loads
// Source: transformers save_pretrained (file names, index, metadata).

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

struct ExportOptions {
  std::uint64_t max_shard_bytes = 50ULL << 30; ///< a larger model goes to several files with an index
  std::optional<DType> dtype{};                ///< of every tensor; nothing: the source's
  Existing existing = Existing::kRefuse;       ///< an export of that name is replaced as a whole, at the end
};

struct ExportReport {
  std::filesystem::path directory;
  std::vector<std::string> files;    ///< safetensors files, in order
  std::vector<std::string> left_out; ///< aliases that are not stored, since their canonical is
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0; ///< of all safetensors files
  double seconds = 0;
  std::vector<Diagnostic> findings; ///< not-finite: values that are infinite in the dtype that was asked for
};

/// Writes `directory`: canonical names only, each storage once, in the dtype that it has in `source` or that is
/// asked for; frozen weights that `source` stores as MXFP4 as they are stored, byte for byte, where no dtype is asked
/// for (unchanged_mxfp4()); config.json and the tokenizer's and generation's files of `source` beside it. Staged in a
/// directory of another name, read back and compared, synced, then renamed: complete or absent. Every rank must call
/// it; all must see one file system.
///
/// @param state   every parameter of the plan must be managed
/// @throws UsageError not-sharded (unmanaged parameters, named); InputError output-exists; PeerError disk-full,
/// io-failed,
///         export-mismatch, peer-failed
ExportReport export_hf(const FsdpState& state,
                       const Checkpoint& source,
                       const std::filesystem::path& directory,
                       const ExportOptions& options = {});

} // namespace tieshard

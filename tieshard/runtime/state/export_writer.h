// tieshard/runtime/state/export_writer.h
//
// One rank's part in writing an exported file.
//
// Flow: hf_export -> [this] -> export_windows, runtime/mesh/all_to_all, core/state/checked_writer
//
// A rank holds a window, what it gives to others of theirs in another dtype, and, over Gloo, both once more: at most
// some 20 MiB beside its shards.

#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <string>

#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/state/export_layout.h"

namespace tieshard {

struct WrittenPart {
  std::map<std::string, std::int64_t> overflowed; ///< finite values that are infinite in the stored dtype, by parameter
  std::exception_ptr failure;                     ///< why this rank did not write all; the first reason
};

/// Writes this rank's part of a file that lies at its full size in `staging`, reads it back and makes it durable. Every
/// rank of state.mesh() must call it: rows are exchanged. A rank that cannot write goes on exchanging, so that no other
/// one waits for it, and says so in `failure`, to be thrown in the next agree().
/// @throws PeerError collective-failed
WrittenPart write_export_file(const FsdpState& state, const std::filesystem::path& staging, const ExportFile& file);

} // namespace tieshard

// tieshard/core/base/staged_directory.h
//
// A directory that appears under its name only when all of it is durable.
//
// Flow:   core/adapters/merge, runtime/state, runtime/adapters -> [this] -> file.h
// Source: POSIX rename(2).

#pragma once

#include <filesystem>

namespace tieshard {

/// Where `directory` is staged: a hidden name beside it. "out/" is "out".
std::filesystem::path staging_of(const std::filesystem::path& directory);

/// Makes an empty staging directory; what an earlier, broken run left of it is removed. Returns staging_of(directory).
/// @throws InputError output-exists when `directory` is there already; PeerError io-failed
std::filesystem::path stage_directory(const std::filesystem::path& directory);

/// Syncs the staging directory and renames it to `directory`. Pre: its files are synced.
/// @throws PeerError io-failed
void publish_directory(const std::filesystem::path& directory);

/// Copies `from` to `to` and syncs it. @throws PeerError io-failed
void copy_durably(const std::filesystem::path& from, const std::filesystem::path& to);

} // namespace tieshard

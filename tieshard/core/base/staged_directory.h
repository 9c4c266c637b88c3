// tieshard/core/base/staged_directory.h
//
// A directory that appears under its name only when all of it is durable.
//
// Flow:   core/adapters/merge, core/state, runtime/state, runtime/adapters -> [this] -> file.h
// Source: POSIX rename(2), Linux renameat2(2) (RENAME_EXCHANGE).

#pragma once

#include <filesystem>

namespace tieshard {

/// A directory of this name can be made: it is not empty, ".", ".." or "/". Before any work for it.
/// @throws InputError bad-flag
void require_new_name(const std::filesystem::path& directory);

/// Where `directory` is staged: a hidden name beside it. "out/" is "out".
std::filesystem::path staging_of(const std::filesystem::path& directory);

/// What happens to a directory that has the name already.
enum class Existing { kRefuse, kReplace };

/// Makes an empty staging directory; what an earlier, broken run left of it is removed. Returns staging_of(directory).
/// @throws InputError output-exists when `directory` is there already and is not to be replaced; PeerError io-failed
std::filesystem::path stage_directory(const std::filesystem::path& directory, Existing existing = Existing::kRefuse);

/// Syncs the staging directory and renames it to `directory`. Pre: its files are synced.
/// @throws PeerError io-failed
void publish_directory(const std::filesystem::path& directory);

/// As publish_directory, but where a directory of that name is there already, the two change places in one step, and
/// the older is removed from under the staging name. On a file system that cannot exchange names the older one first
/// gets a hidden name (removal_of): for a moment, and after a kill then, there is none of that name.
/// @throws PeerError io-failed, disk-full
void replace_directory(const std::filesystem::path& directory);

/// The hidden name under which `directory` is while it is removed.
std::filesystem::path removal_of(const std::filesystem::path& directory);

/// Renames `directory` to removal_of(directory) and removes it there, so that a kill in the middle leaves no half of it
/// under its name. @throws PeerError io-failed, disk-full
void remove_directory(const std::filesystem::path& directory);

/// Copies `from` to `to` and syncs it. @throws PeerError io-failed
void copy_durably(const std::filesystem::path& from, const std::filesystem::path& to);

} // namespace tieshard

// tieshard/core/state/rank_marks.h
//
// How the ranks of a save tell each other that their files are durable: by small files beside them.
//
// Flow: runtime/state/checkpoint_writer -> [this] -> base/file.h

#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tieshard/core/state/hashed_file.h"

namespace tieshard {

/// A line for each file: name, bytes and hash.
std::string to_text(const std::vector<FileRecord>& files);
/// @throws InternalError bug for a text that to_text() did not make
std::vector<FileRecord> parse_records(const std::string& text);

/// Says that `rank` has written and synced `files`. @throws PeerError disk-full, io-failed
void mark_done(const std::filesystem::path& staging, std::int64_t rank, const std::vector<FileRecord>& files);

/// Says that `rank` has failed. Never throws: the disk may be what failed; the rank itself tells then.
void mark_failed(const std::filesystem::path& staging, std::int64_t rank, const std::string& why) noexcept;

/// Waits for the marks of ranks 1 to `ranks` - 1, removes them and returns their files. Looks every few milliseconds.
/// @throws PeerError save-failed when one has failed, or when `given_up` becomes true
std::vector<FileRecord> await_marks(const std::filesystem::path& staging,
                                    std::int64_t ranks,
                                    const std::atomic<bool>& given_up);

} // namespace tieshard

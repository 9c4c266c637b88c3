// tieshard/cli/demo_text.h
//
// Text to train the demo's model on: tieshard's own documents, one token a byte.
//
// Flow: demo -> [this] -> base/file.h

#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

namespace tieshard::cli {

/// README.md, ARCHITECTURE.md and docs/*.md of the source tree that `program` was built in, else what is installed in
/// <prefix>/share/doc/tieshard. Sorted; empty when there are none.
///
/// @param program  the running program, e.g. <source>/build/bin/tieshard or <prefix>/bin/tieshard
std::vector<std::filesystem::path> own_documents(const std::filesystem::path& program);

/// Writes the bytes of `files`, one after the other, as little-endian uint16 tokens.
///
/// @return the number of tokens
/// @throws InputError file-not-found, file-unreadable; PeerError disk-full, io-failed
std::size_t write_byte_tokens(const std::vector<std::filesystem::path>& files, const std::filesystem::path& tokens);

} // namespace tieshard::cli

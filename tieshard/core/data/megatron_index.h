// tieshard/core/data/megatron_index.h
//
// The .idx beside Megatron's .bin: the type of a token, and where documents begin.
//
// Flow:   token_file -> [this]
// Source: Megatron-LM's IndexedDataset: "MMIDIDX\0\0", version 1 (u64), a code of the type (u8), numbers of sequences
// and
//         of document indices (u64 each), lengths (i32), byte pointers (i64), document indices (i64).

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tieshard/core/data/token_format.h"

namespace tieshard {

struct MegatronIndex {
  TokenLayout layout;
  std::int64_t documents = 0;                ///< that hold a token
  std::vector<std::int64_t> document_starts; ///< their first tokens, rising; empty unless they are kept
};

/// Fills `out` from a byte of the index on.
using ReadIndexBytes = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

/// True where the first bytes are those of an index.
bool is_megatron_index(std::span<const std::byte> head);

/// Reads the whole index once, a piece at a time. Sequences have to lie in the .bin one after the other without a gap,
/// as Megatron writes them.
/// @param index_bytes  size of the .idx
/// @param data_bytes   size of the .bin
/// @param keep         keep document_starts: 8 bytes a document
/// @param where        the .idx, for errors
/// @throws InputError data-malformed (no such index, another version, a type that is no integer, counts and sizes that
///         contradict each other or the .bin)
MegatronIndex parse_megatron_index(const ReadIndexBytes& read,
                                   std::uint64_t index_bytes,
                                   std::uint64_t data_bytes,
                                   bool keep,
                                   const std::string& where);

} // namespace tieshard

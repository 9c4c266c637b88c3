// tieshard/core/data/token_format.h
//
// How tokens lie in a file: its format, the type of one token, where the first one begins.
//
// Flow:   token_file, megatron_index -> [this]
// Source: llm.c's data files (dev/data/data_common.py: 256 int32, of them magic, version and number of tokens).

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tieshard {

/// kAuto: what the file itself says.
enum class TokenFormat { kAuto, kRaw, kLlmC, kMegatron };

enum class TokenType { kUint8, kInt8, kInt16, kUint16, kInt32, kUint32, kInt64 };

/// Bytes of one token.
std::int64_t width(TokenType type);

/// "uint16".
std::string_view name(TokenType type);

/// "raw", "llm.c", "megatron"; "auto".
std::string_view name(TokenFormat format);

/// Tokens that lie one after the other, little-endian.
struct TokenLayout {
  TokenFormat format = TokenFormat::kRaw;
  TokenType type = TokenType::kUint16;
  std::uint64_t begin = 0; ///< byte of the first token
  std::int64_t tokens = 0;

  friend bool operator==(const TokenLayout&, const TokenLayout&) = default;
};

/// Bytes of llm.c's header.
inline constexpr std::uint64_t kLlmCHeader = 1024;

/// The layout that llm.c's header says: magic 20240520 version 1 is uint16, 20240801 version 7 uint32.
/// @param head        the first kLlmCHeader bytes of the file, or all of a shorter one
/// @param file_bytes  of the whole file
/// @param where       what to name in an error
/// @returns nothing where the file does not begin with a magic number of llm.c's
/// @throws InputError data-malformed (another version, an evaluation file, a size that is not the header's)
std::optional<TokenLayout> parse_llmc_header(std::span<const std::byte> head,
                                             std::uint64_t file_bytes,
                                             const std::string& where);

} // namespace tieshard

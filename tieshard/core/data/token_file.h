// tieshard/core/data/token_file.h
//
// A file of tokens, whatever its format: found, recognised by its content, read by position.
//
// Flow:   a path -> [this] (token_format, megatron_index) -> token_samples
// Source: raw little-endian tokens as nanoGPT writes them; llm.c's header; Megatron's .bin beside .idx.

#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tieshard/core/base/file.h"
#include "tieshard/core/data/token_format.h"

namespace tieshard {

/// Of a raw file. kAuto: uint16 for a vocabulary of up to 65,536 tokens, uint32 for a larger one.
enum class TokenDtype { kAuto, kUint16, kUint32 };

struct TokenFileOptions {
  TokenFormat format = TokenFormat::kAuto;
  TokenDtype dtype = TokenDtype::kAuto;
  std::int64_t vocab_size = 0; ///< tokens have to be from 0 to below
  bool keep_documents = false; ///< where the documents of a Megatron index begin; 8 bytes a document
};

class TokenFile {
 public:
  /// Of Megatron's two files `path` may be either, or their name without an ending. With format kAuto the file is what
  /// its content says: Megatron's where an index lies beside it, llm.c's where its magic number and size stand at the
  /// start, else raw.
  /// @throws InputError file-not-found, data-malformed (a header or index that cannot be used; a format or dtype that
  ///         contradicts the content; a raw size that is no whole number of tokens; uint32 read as uint16)
  static TokenFile open(const std::filesystem::path& path, const TokenFileOptions& options);

  /// Fills `out` with the tokens from `first` on. Pre: they are in the file
  /// @throws InputError token-out-of-range (position in the file and value); PeerError io-failed
  void read(std::int64_t first, std::span<std::int64_t> out) const;

  std::int64_t tokens() const noexcept {
    return layout_.tokens;
  }
  const TokenLayout& layout() const noexcept {
    return layout_;
  }
  /// Of a Megatron index; 0 for the other formats, which do not say.
  std::int64_t documents() const noexcept {
    return documents_;
  }
  /// First tokens of the documents; empty unless they were to be kept.
  const std::vector<std::int64_t>& document_starts() const noexcept {
    return document_starts_;
  }
  const std::filesystem::path& path() const noexcept {
    return file_.path();
  }

 private:
  TokenFile(File file, const TokenLayout& layout, std::int64_t vocab_size)
      : file_(std::move(file)), layout_(layout), vocab_size_(vocab_size) {}

  File file_;
  TokenLayout layout_;
  std::int64_t vocab_size_;
  std::int64_t documents_ = 0;
  std::vector<std::int64_t> document_starts_;
};

/// The files that a run reads for `path`: the tokens, and Megatron's index where there is one.
std::vector<std::filesystem::path> files_of_tokens(const std::filesystem::path& path);

} // namespace tieshard

// tieshard/runtime/train/token_data.h
//
// A file of tokens as training samples, in an order that every rank computes alike.
//
// Flow:   a raw .bin file -> [this] -> trainer
// Source: raw little-endian uint16 or uint32 tokens, as llm.c and nanoGPT use them without a header.

#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/core/base/file.h"

namespace tieshard {

/// kAuto: uint16 for a vocabulary of up to 65,536 tokens, uint32 for a larger one.
enum class TokenDtype { kAuto, kUint16, kUint32 };

struct TokenDataOptions {
  TokenDtype dtype = TokenDtype::kAuto;
  std::int64_t sequence = 1024; ///< tokens of one sample
  std::int64_t vocab_size = 0;  ///< tokens have to be below
  bool shuffle = true;
  std::uint64_t seed = 0;
};

/// Sample i is the tokens [i * sequence, (i + 1) * sequence) of the file; a rest at its end is not used. Shuffled, each
/// epoch is a permutation that depends on seed and epoch only.
class TokenData {
 public:
  /// @throws InputError file-not-found, data-malformed (a size that is no whole number of tokens; a uint32 file read as
  ///         uint16), data-too-short (less than one sample)
  static TokenData open(const std::filesystem::path& path, const TokenDataOptions& options);

  /// Token ids int64 [batch, sequence] of `rank` of `ranks` at `step` (from 0): the global batch of a step is the next
  /// ranks * batch samples, rank-major. Past the end the next epoch begins.
  /// @throws InputError token-out-of-range (position in the file and value)
  at::Tensor batch(std::int64_t step, std::int64_t batch, std::int64_t rank, std::int64_t ranks);

  /// The same for a run whose steps have not all been of one size: the global batch begins with sample `first` (from 0)
  /// of the run's order.
  at::Tensor batch_from(std::int64_t first, std::int64_t batch, std::int64_t rank);

  /// The first `count` tokens of the file, int64 [1, count]; all of them when count is 0.
  at::Tensor head(std::int64_t count) const;

  std::int64_t samples() const noexcept {
    return samples_;
  }
  std::int64_t tokens() const noexcept {
    return tokens_;
  }

 private:
  TokenData(File file, const TokenDataOptions& options, std::int64_t tokens);
  void refuse_wider_tokens() const;
  void read(std::int64_t first, std::int64_t count, std::int64_t* out) const;
  std::int64_t sample(std::int64_t position);

  File file_;
  TokenDataOptions options_;
  std::int64_t tokens_;
  std::int64_t samples_;
  std::int64_t epoch_ = -1; ///< whose order `order_` is
  std::vector<std::int64_t> order_;
};

} // namespace tieshard

// tieshard/runtime/train/token_data.h
//
// Batches of a token file, in an order that every rank computes alike.
//
// Flow: core/data/token_samples, core/data/sample_order -> [this] -> trainer, evaluation

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "tieshard/core/data/sample_order.h"
#include "tieshard/core/data/token_samples.h"
#include "tieshard/core/families/family.h"

namespace tieshard {

struct TokenDataOptions {
  TokenFormat format = TokenFormat::kAuto;
  TokenDtype dtype = TokenDtype::kAuto; ///< of a raw file
  std::int64_t sequence = 1024;         ///< tokens of one sample
  std::int64_t vocab_size = 0;          ///< tokens have to be below
  bool shuffle = true;
  std::uint64_t seed = 0;
  std::filesystem::path label_mask{};               ///< one byte a token, 0: no target; empty: every token is one
  bool documents = false;                           ///< those of a Megatron index are apart
  std::optional<std::int64_t> document_separator{}; ///< this token ends its document
  /// Of an encoder-decoder: the last tokens of a sample, which are what the decoder has to say; the encoder is given
  /// those before them. 0: of a decoder, which is given all. Not with documents.
  std::int64_t target = 0;
};

/// Samples side by side.
struct TokenBatch {
  at::Tensor ids;       ///< int64 [B, T]; with a target, the tokens before it
  at::Tensor labels;    ///< int64 [B, T], kIgnoredLabel where there is no target; with a target, of its tokens
  at::Tensor documents; ///< int64 [B, T], counted from 0 in each row; undefined: each row is one document
};

/// Sample i is the tokens [i * sequence, (i + 1) * sequence) of the file; a rest at its end is not used. Shuffled, each
/// epoch is a permutation that depends on seed and epoch only.
class TokenData {
 public:
  /// @throws InputError bad-flag (a target that is not shorter than the sample, or beside documents), and what
  ///         TokenSamples::open throws
  static TokenData open(const std::filesystem::path& path, const TokenDataOptions& options);

  /// Token ids int64 [batch, sequence] of `rank` of `ranks` at `step` (from 0): the global batch of a step is the next
  /// ranks * batch samples, rank-major. Past the end the next epoch begins.
  /// @throws InputError token-out-of-range (position in the file and value)
  at::Tensor batch(std::int64_t step, std::int64_t batch, std::int64_t rank, std::int64_t ranks);

  /// The same, with labels and documents, for a run whose steps have not all been of one size: the global batch begins
  /// with sample `first` (from 0) of the run's order.
  TokenBatch batch_from(std::int64_t first, std::int64_t batch, std::int64_t rank);

  /// `rows` samples from `first` on in the file's order; of those behind the last one ids are 0 and nothing is a
  /// target.
  TokenBatch consecutive(std::int64_t first, std::int64_t rows) const;

  /// Reads the first `samples` samples (0: all) as an evaluation will, so that what is wrong with them shows before
  /// anything is computed. @throws InputError token-out-of-range; data-too-short when none of them has a target
  void require_evaluable(std::int64_t samples) const;

  /// Reads as far as the first target. @throws InputError token-out-of-range before it; data-too-short: there is none
  void require_a_target() const;

  /// The first `count` tokens of the file, int64 [1, count]; all of them when count is 0.
  at::Tensor head(std::int64_t count) const;

  std::int64_t samples() const noexcept {
    return samples_.samples();
  }
  std::int64_t tokens() const noexcept {
    return samples_.file().tokens();
  }
  /// As TokenSamples says it.
  std::string description() const {
    return samples_.description();
  }

 private:
  TokenData(TokenSamples samples, const TokenDataOptions& options);
  TokenBatch empty_batch(std::int64_t rows) const;
  TokenBatch split(TokenBatch whole) const;
  void fill(TokenBatch& batch, std::int64_t row, std::int64_t sample) const;
  void require_targets(std::int64_t samples, std::int64_t enough) const;

  TokenSamples samples_;
  std::int64_t sequence_;
  std::int64_t target_;
  SampleOrder order_;
};

/// That there is a target exactly where a model of `family` takes one. @throws InputError bad-flag
void require_target_of(const Family& family, const HfConfig& config, std::int64_t target);

} // namespace tieshard

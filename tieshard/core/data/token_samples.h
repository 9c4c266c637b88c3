// tieshard/core/data/token_samples.h
//
// A token file cut into samples of equal length: ids, labels, and which document each token belongs to.
//
// Flow:   token_file -> [this] -> runtime/train/token_data
// Source: documents that do not see one another: Megatron-LM's reset_attention_mask. The first token of a document is
// no
//         target, as with its eod_mask_loss; torchtitan trains on it.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "tieshard/core/data/token_file.h"

namespace tieshard {

/// A label that is no target.
inline constexpr std::int64_t kNoTarget = -100;

struct TokenSampleOptions {
  TokenFormat format = TokenFormat::kAuto;
  TokenDtype dtype = TokenDtype::kAuto;             ///< of a raw file
  std::int64_t sequence = 1024;                     ///< tokens of one sample
  std::int64_t vocab_size = 0;                      ///< tokens have to be below
  std::filesystem::path label_mask{};               ///< one byte a token, 0: no target; empty: every token is one
  bool documents = false;                           ///< those of a Megatron index are apart
  std::optional<std::int64_t> document_separator{}; ///< this token ends its document
};

/// What fill() writes of one sample; each as long as the sample.
struct SampleRow {
  std::span<std::int64_t> ids;
  std::span<std::int64_t> labels;    ///< the ids, kNoTarget where one is no target
  std::span<std::int64_t> documents; ///< counted from 0 in each sample; empty where documents are not kept apart
};

/// Sample i is the tokens [i * sequence, (i + 1) * sequence) of the file; a rest at its end is not used.
class TokenSamples {
 public:
  /// @throws InputError what TokenFile::open throws; data-malformed (a label mask of another size); data-too-short
  /// (less
  ///         than one sample); bad-flag (documents of a file that does not say them, or told in two ways; a separator
  ///         that is no token)
  static TokenSamples open(const std::filesystem::path& path, const TokenSampleOptions& options);

  /// @throws InputError token-out-of-range; PeerError io-failed
  void fill(std::int64_t sample, const SampleRow& row) const;

  /// Targets at positions from `first_position` on in the samples [0, count), each of which is read; it ends early once
  /// there are `enough` of them.
  /// @throws InputError token-out-of-range; PeerError io-failed
  std::int64_t count_targets(std::int64_t count, std::int64_t first_position, std::int64_t enough) const;

  std::int64_t samples() const noexcept {
    return file_.tokens() / options_.sequence;
  }
  const TokenFile& file() const noexcept {
    return file_;
  }
  /// Whether samples have document numbers.
  bool has_documents() const noexcept {
    return options_.documents || options_.document_separator;
  }

  /// For people, as "llm.c uint16, 12,345 tokens, 24 samples": format, type, sizes, what is known of documents, and how
  /// many of the masked labels near the start are targets.
  std::string description() const;

 private:
  TokenSamples(TokenFile file, const TokenSampleOptions& options) : file_(std::move(file)), options_(options) {}
  void open_label_mask();
  void number_documents(std::int64_t first, const SampleRow& row) const;
  std::int64_t count_separators(std::int64_t tokens) const;

  TokenFile file_;
  TokenSampleOptions options_;
  std::optional<File> label_mask_;
};

} // namespace tieshard

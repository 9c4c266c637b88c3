#include "tieshard/runtime/train/token_data.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/t5.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {
namespace {

static_assert(kNoTarget == kIgnoredLabel);

/// A row of an int64 tensor that was made here; empty of an undefined one.
std::span<std::int64_t> row_of(at::Tensor& tensor, std::int64_t row) {
  if (!tensor.defined()) {
    return {};
  }
  const std::int64_t length = tensor.size(1);
  return {tensor.mutable_data_ptr<std::int64_t>() + row * length, static_cast<std::size_t>(length)};
}

void require_target(const TokenDataOptions& options) {
  const bool with_documents = options.documents || options.document_separator;
  if (options.target == 0 || (options.target > 0 && options.target < options.sequence && !with_documents)) {
    return;
  }
  throw InputError({.code = Code::kBadFlag,
                    .what = "a command line flag has a value that cannot be used",
                    .where = concat("--target-len ", options.target),
                    .why = with_documents
                               ? std::string("got documents beside it, which an encoder-decoder takes none of")
                               : concat("expected 1 to ", options.sequence - 1, ", less than --seq"),
                    .fix = with_documents ? "leave --documents and --document-separator out"
                                          : "leave the encoder at least one token of each sample"});
}

} // namespace

TokenData::TokenData(TokenSamples samples, const TokenDataOptions& options)
    : samples_(std::move(samples)),
      sequence_(options.sequence),
      target_(options.target),
      order_(samples_.samples(), options.shuffle, options.seed) {}

TokenData TokenData::open(const std::filesystem::path& path, const TokenDataOptions& options) {
  require_target(options);
  return {TokenSamples::open(path,
                             {.format = options.format,
                              .dtype = options.dtype,
                              .sequence = options.sequence,
                              .vocab_size = options.vocab_size,
                              .label_mask = options.label_mask,
                              .documents = options.documents,
                              .document_separator = options.document_separator}),
          options};
}

TokenBatch TokenData::empty_batch(std::int64_t rows) const {
  TokenBatch batch{.ids = at::zeros({rows, sequence_}, at::kLong),
                   .labels = at::full({rows, sequence_}, kIgnoredLabel, at::kLong),
                   .documents = {}};
  if (samples_.has_documents()) {
    batch.documents = at::zeros({rows, sequence_}, at::kLong);
  }
  return batch;
}

void TokenData::fill(TokenBatch& batch, std::int64_t row, std::int64_t sample) const {
  samples_.fill(
      sample,
      {.ids = row_of(batch.ids, row), .labels = row_of(batch.labels, row), .documents = row_of(batch.documents, row)});
}

TokenBatch TokenData::split(TokenBatch whole) const {
  if (target_ == 0) {
    return whole;
  }
  const std::int64_t source = sequence_ - target_;
  return {.ids = whole.ids.narrow(1, 0, source), .labels = whole.labels.narrow(1, source, target_), .documents = {}};
}

at::Tensor TokenData::batch(std::int64_t step, std::int64_t batch, std::int64_t rank, std::int64_t ranks) {
  return batch_from(step * ranks * batch, batch, rank).ids;
}

TokenBatch TokenData::batch_from(std::int64_t first, std::int64_t batch, std::int64_t rank) {
  TokenBatch made = empty_batch(batch);
  for (std::int64_t row = 0; row < batch; ++row) {
    fill(made, row, order_.at(first + rank * batch + row));
  }
  return split(std::move(made));
}

TokenBatch TokenData::consecutive(std::int64_t first, std::int64_t rows) const {
  TokenBatch made = empty_batch(rows);
  for (std::int64_t row = 0; row < std::min(rows, samples() - first); ++row) {
    fill(made, row, first + row);
  }
  return split(std::move(made));
}

void TokenData::require_targets(std::int64_t samples, std::int64_t enough) const {
  const std::int64_t first_predicted = target_ == 0 ? 1 : sequence_ - target_;
  if (samples_.count_targets(samples, first_predicted, enough) > 0) {
    return;
  }
  throw InputError({.code = Code::kDataTooShort,
                    .what = "nothing in a token file is a target",
                    .where = samples_.file().path().string(),
                    .why = concat("expected a token that the model has to predict in ", samples, " samples, got none"),
                    .fix = "give a label mask that is not 0 everywhere, or more samples"});
}

void TokenData::require_evaluable(std::int64_t samples) const {
  require_targets(samples == 0 ? this->samples() : std::min(samples, this->samples()),
                  std::numeric_limits<std::int64_t>::max());
}

void TokenData::require_a_target() const {
  require_targets(samples(), 1);
}

at::Tensor TokenData::head(std::int64_t count) const {
  const std::int64_t wanted = count == 0 ? tokens() : std::min(count, tokens());
  at::Tensor ids = at::empty({1, wanted}, at::kLong);
  samples_.file().read(0, row_of(ids, 0));
  return ids;
}

void require_target_of(const Family& family, const HfConfig& config, std::int64_t target) {
  const bool wants = &family == &t5_family();
  if (wants == (target > 0)) {
    return;
  }
  throw InputError(
      {.code = Code::kBadFlag,
       .what = wants ? "an encoder-decoder needs to be told where its targets begin"
                     : "a command line flag has nothing to act on",
       .where = concat("--target-len ", target),
       .why = concat(config.where(), ": the family is ", family.name()),
       .fix = wants ? "give --target-len: of the --seq tokens of a sample, the last that the decoder has to say"
                    : "leave it out: a decoder predicts every token of a sample"});
}

} // namespace tieshard

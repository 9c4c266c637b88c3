#include "tieshard/runtime/train/token_data.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ATen/ATen.h>

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

} // namespace

TokenData::TokenData(TokenSamples samples, const TokenDataOptions& options)
    : samples_(std::move(samples)),
      sequence_(options.sequence),
      order_(samples_.samples(), options.shuffle, options.seed) {}

TokenData TokenData::open(const std::filesystem::path& path, const TokenDataOptions& options) {
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

at::Tensor TokenData::batch(std::int64_t step, std::int64_t batch, std::int64_t rank, std::int64_t ranks) {
  return batch_from(step * ranks * batch, batch, rank).ids;
}

TokenBatch TokenData::batch_from(std::int64_t first, std::int64_t batch, std::int64_t rank) {
  TokenBatch made = empty_batch(batch);
  for (std::int64_t row = 0; row < batch; ++row) {
    fill(made, row, order_.at(first + rank * batch + row));
  }
  return made;
}

TokenBatch TokenData::consecutive(std::int64_t first, std::int64_t rows) const {
  TokenBatch made = empty_batch(rows);
  for (std::int64_t row = 0; row < std::min(rows, samples() - first); ++row) {
    fill(made, row, first + row);
  }
  return made;
}

at::Tensor TokenData::head(std::int64_t count) const {
  const std::int64_t wanted = count == 0 ? tokens() : std::min(count, tokens());
  at::Tensor ids = at::empty({1, wanted}, at::kLong);
  samples_.file().read(0, row_of(ids, 0));
  return ids;
}

} // namespace tieshard

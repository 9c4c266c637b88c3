#include "tieshard/runtime/train/token_data.h"

#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

std::int64_t width(TokenDtype dtype) {
  return dtype == TokenDtype::kUint16 ? 2 : 4;
}

} // namespace

TokenData::TokenData(File file, const TokenDataOptions& options, std::int64_t tokens)
    : file_(std::move(file)), options_(options), tokens_(tokens), samples_(tokens / options.sequence) {}

TokenData TokenData::open(const std::filesystem::path& path, const TokenDataOptions& options) {
  File file = File::open_for_reading(path);
  const auto bytes = static_cast<std::int64_t>(file.size());
  if (bytes % width(options.dtype) != 0) {
    throw InputError({.code = Code::kDataMalformed,
                      .what = "a token file holds no whole number of tokens",
                      .where = path.string(),
                      .why = concat("expected a multiple of ", width(options.dtype), " bytes, got ", bytes),
                      .fix = "give --data-dtype uint16 or uint32 as the file was written, or write it again"});
  }
  const std::int64_t tokens = bytes / width(options.dtype);
  if (tokens < options.sequence) {
    throw InputError({.code = Code::kDataTooShort,
                      .what = "a token file holds too few tokens",
                      .where = path.string(),
                      .why = concat("expected at least one sequence of ", options.sequence, " tokens, got ", tokens),
                      .fix = "give a longer file or a smaller --seq"});
  }
  return TokenData(std::move(file), options, tokens);
}

void TokenData::read(std::int64_t first, std::int64_t count, std::int64_t* out) const {
  const std::int64_t size = width(options_.dtype);
  std::vector<std::byte> raw(static_cast<std::size_t>(count * size));
  file_.read_at(static_cast<std::uint64_t>(first * size), raw);
  for (std::int64_t index = 0; index < count; ++index) {
    std::uint32_t token = 0;
    std::memcpy(&token, raw.data() + index * size, static_cast<std::size_t>(size)); // little-endian, like the machine
    if (token >= options_.vocab_size) {
      throw InputError({.code = Code::kTokenOutOfRange,
                        .what = "a token is not in the model's vocabulary",
                        .where = concat(file_.path().string(), ", token ", format_count(first + index)),
                        .why = concat("expected below ", options_.vocab_size, ", got ", token),
                        .fix = "tokenise the text with this model's tokenizer; check --data-dtype"});
    }
    out[index] = token;
  }
}

std::int64_t TokenData::sample(std::int64_t position) {
  const std::int64_t epoch = position / samples_;
  if (!options_.shuffle) {
    return position % samples_;
  }
  if (epoch != epoch_) {
    order_.resize(static_cast<std::size_t>(samples_));
    std::iota(order_.begin(), order_.end(), 0);
    std::seed_seq seed{options_.seed, static_cast<std::uint64_t>(epoch)};
    std::mt19937_64 generator(seed);
    for (std::size_t last = order_.size(); last > 1; --last) { // not std::shuffle: its order is not specified
      std::swap(order_[last - 1], order_[generator() % last]);
    }
    epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(position % samples_)];
}

at::Tensor TokenData::batch(std::int64_t step, std::int64_t batch, std::int64_t rank, std::int64_t ranks) {
  at::Tensor ids = at::empty({batch, options_.sequence}, at::kLong);
  for (std::int64_t row = 0; row < batch; ++row) {
    const std::int64_t position = (step * ranks + rank) * batch + row;
    read(sample(position) * options_.sequence, options_.sequence, ids[row].mutable_data_ptr<std::int64_t>());
  }
  return ids;
}

at::Tensor TokenData::head(std::int64_t count) const {
  const std::int64_t wanted = count == 0 ? tokens_ : std::min(count, tokens_);
  at::Tensor ids = at::empty({1, wanted}, at::kLong);
  read(0, wanted, ids.mutable_data_ptr<std::int64_t>());
  return ids;
}

} // namespace tieshard

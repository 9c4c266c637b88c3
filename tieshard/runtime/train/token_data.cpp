#include "tieshard/runtime/train/token_data.h"

#include <algorithm>
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

/// seed_seq takes 32 bits of each number: a larger seed's upper half is a number of its own.
std::mt19937_64 generator_of(std::uint64_t seed, std::uint64_t epoch) {
  const std::uint64_t upper = seed >> 32;
  std::seed_seq small{seed, epoch};
  std::seed_seq large{seed, epoch, upper};
  return std::mt19937_64(upper == 0 ? small : large);
}

} // namespace

TokenData::TokenData(File file, const TokenDataOptions& options, std::int64_t tokens)
    : file_(std::move(file)), options_(options), tokens_(tokens), samples_(tokens / options.sequence) {}

TokenData TokenData::open(const std::filesystem::path& path, const TokenDataOptions& given) {
  TokenDataOptions options = given;
  if (options.dtype == TokenDtype::kAuto) {
    options.dtype = options.vocab_size > 65536 ? TokenDtype::kUint32 : TokenDtype::kUint16;
  }
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
  TokenData data(std::move(file), options, tokens);
  data.refuse_wider_tokens();
  return data;
}

/// Read as uint16, the upper half of every small uint32 token is a token 0: half of the text, and nothing else would
/// tell.
void TokenData::refuse_wider_tokens() const {
  const std::int64_t looked_at = std::min<std::int64_t>(tokens_, 4096);
  if (options_.dtype != TokenDtype::kUint16 || looked_at < 8) {
    return;
  }
  std::vector<std::uint16_t> start(static_cast<std::size_t>(looked_at));
  file_.read_at(0, std::as_writable_bytes(std::span(start)));
  bool odd_zero = true;
  bool even_zero = true;
  for (std::size_t index = 0; index < start.size(); ++index) {
    (index % 2 == 1 ? odd_zero : even_zero) &= start[index] == 0;
  }
  if (odd_zero && !even_zero) {
    throw InputError({.code = Code::kDataMalformed,
                      .what = "a token file looks like uint32 and is read as uint16",
                      .where = file_.path().string(),
                      .why = concat("every second of the first ", looked_at, " tokens is 0"),
                      .fix = "give --data-dtype uint32"});
  }
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
    std::mt19937_64 generator = generator_of(options_.seed, static_cast<std::uint64_t>(epoch));
    for (std::size_t last = order_.size(); last > 1; --last) { // not std::shuffle: its order is not specified
      std::swap(order_[last - 1], order_[generator() % last]);
    }
    epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(position % samples_)];
}

at::Tensor TokenData::batch(std::int64_t step, std::int64_t batch, std::int64_t rank, std::int64_t ranks) {
  return batch_from(step * ranks * batch, batch, rank);
}

at::Tensor TokenData::batch_from(std::int64_t first, std::int64_t batch, std::int64_t rank) {
  at::Tensor ids = at::empty({batch, options_.sequence}, at::kLong);
  for (std::int64_t row = 0; row < batch; ++row) {
    const std::int64_t position = first + rank * batch + row;
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

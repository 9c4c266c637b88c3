#include "tieshard/cli/runtime/forward_inputs.h"

#include <array>
#include <cstring>
#include <span>

#include <ATen/ATen.h>

#include "tieshard/cli/runtime/ranks.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/runtime/train/token_data.h"

namespace tieshard::cli {
namespace {

/// The length of a header, 8 bytes little-endian, and the brace that it begins with.
bool begins_as_safetensors(const std::filesystem::path& path) {
  constexpr std::uint64_t kLengthBytes = 8;
  const File file = File::open_for_reading(path);
  if (file.size() <= kLengthBytes) {
    return false;
  }
  std::array<std::byte, kLengthBytes + 1> first{};
  file.read_at(0, first);
  std::uint64_t header = 0;
  std::memcpy(&header, first.data(), kLengthBytes);
  return header > 0 && header <= file.size() - kLengthBytes && first.back() == std::byte{'{'};
}

at::Tensor read_integers(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    return {};
  }
  if (entry->dtype != DType::kI64 || entry->shape.size() != 2 || numel(entry->shape) == 0) {
    throw InputError(
        {.code = Code::kDataMalformed,
         .what = "a tensor of the token file is not usable",
         .where = concat(file.file().path().string(), ", ", name),
         .why =
             concat("expected I64 [batch, sequence], got ", tieshard::name(entry->dtype), " ", to_string(entry->shape)),
         .fix = "store the ids as int64 with two dimensions, neither of them 0"});
  }
  at::Tensor values = at::empty(entry->shape, at::kLong);
  file.file().read_at(file.header().data_start + entry->begin,
                      std::as_writable_bytes(std::span(values.mutable_data_ptr<std::int64_t>(),
                                                       static_cast<std::size_t>(values.numel()))));
  return values;
}

void require_in_vocab(const at::Tensor& ids, std::int64_t vocab, const std::string& where) {
  const auto low = ids.min().item<std::int64_t>();
  const auto high = ids.max().item<std::int64_t>();
  if (low < 0 || high >= vocab) {
    throw InputError({.code = Code::kTokenOutOfRange,
                      .what = "a token is not in the model's vocabulary",
                      .where = where,
                      .why = concat("expected 0 to ", vocab - 1, ", got ", low, " to ", high),
                      .fix = "tokenise the text with this model's tokenizer"});
  }
}

/// A decoder's token predicts the label behind it; an encoder-decoder's decoder says the labels.
void require_labels(const ForwardInputs& inputs, std::int64_t vocab, const std::string& where) {
  const at::Tensor targets = inputs.labels.masked_select(inputs.labels != kIgnoredLabel);
  if (targets.numel() > 0) {
    require_in_vocab(targets, vocab, where + ", labels");
  }
  const at::Tensor& predicting = inputs.decoder_ids.defined() ? inputs.decoder_ids : inputs.ids;
  if (inputs.labels.sizes() != predicting.sizes()) {
    throw InputError(
        {.code = Code::kDataMalformed,
         .what = "labels and the tokens that predict them have different shapes",
         .where = where,
         .why =
             concat("expected ", to_string(predicting.sizes().vec()), ", got ", to_string(inputs.labels.sizes().vec())),
         .fix = "give one label for each token, -100 where there is no target"});
  }
}

/// @throws InputError data-malformed: a decoder that is given decoder ids, an encoder-decoder that is given none
void require_decoder_ids(const ForwardInputs& inputs, const LanguageModel& model, const std::string& where) {
  if (inputs.decoder_ids.defined() == !model.predicts_next()) {
    return;
  }
  throw InputError({.code = Code::kDataMalformed,
                    .what = "the token file does not suit the model",
                    .where = where,
                    .why = model.predicts_next() ? "expected no decoder_input_ids: the model is a decoder"
                                                 : "expected decoder_input_ids or labels: the model is an "
                                                   "encoder-decoder, got input_ids alone",
                    .fix = model.predicts_next() ? "leave decoder_input_ids out"
                                                 : "give a safetensors file with decoder_input_ids, I64 [batch, "
                                                   "sequence], or with labels, of which they are made"});
}

ForwardInputs read_tensors(const std::filesystem::path& tokens, const LanguageModel& model, std::int64_t vocab) {
  const SafetensorsFile file = SafetensorsFile::open(tokens);
  const std::string where = tokens.string();
  ForwardInputs inputs{
      read_integers(file, "input_ids"), read_integers(file, "labels"), read_integers(file, "decoder_input_ids")};
  if (!inputs.ids.defined()) {
    throw InputError({.code = Code::kDataMalformed,
                      .what = "the token file has no input_ids",
                      .where = where,
                      .fix = "store the tokens as input_ids, I64 [batch, sequence]"});
  }
  require_in_vocab(inputs.ids, vocab, where + ", input_ids");
  if (inputs.labels.defined() && !inputs.decoder_ids.defined()) {
    inputs.decoder_ids = model.decoder_ids_of(inputs.labels);
  } else if (inputs.decoder_ids.defined()) {
    require_in_vocab(inputs.decoder_ids, vocab, where + ", decoder_input_ids");
  }
  require_decoder_ids(inputs, model, where);
  if (inputs.labels.defined()) {
    require_labels(inputs, vocab, where);
  }
  return inputs;
}

} // namespace

ForwardInputs read_forward_inputs(const std::filesystem::path& tokens,
                                  const std::string& data_dtype,
                                  std::int64_t count,
                                  const LanguageModel& model,
                                  std::int64_t vocab) {
  if (data_dtype == "auto" && begins_as_safetensors(tokens)) {
    return read_tensors(tokens, model, vocab);
  }
  const TokenDataOptions options{.dtype = token_dtype_flag(data_dtype), .sequence = 1, .vocab_size = vocab};
  ForwardInputs inputs{.ids = TokenData::open(tokens, options).head(count), .labels = {}, .decoder_ids = {}};
  require_decoder_ids(inputs, model, tokens.string());
  return inputs;
}

} // namespace tieshard::cli

#include "tieshard/core/data/token_samples.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

/// Tokens that description() looks at: what it says of separators and masks is of these.
constexpr std::int64_t kLookedAt = 1 << 20;

InputError bad_flag(const std::string& flag, const std::string& why, const std::string& fix) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has nothing to act on",
                     .where = flag,
                     .why = why,
                     .fix = fix});
}

void require_documents(const TokenFile& file, const TokenSampleOptions& options) {
  if (options.documents && options.document_separator) {
    throw bad_flag("--documents",
                   "expected --documents or --document-separator, got both",
                   "leave one out: the first takes documents from Megatron's index, the second from the tokens");
  }
  if (options.documents && file.layout().format != TokenFormat::kMegatron) {
    throw bad_flag("--documents",
                   concat("expected a Megatron .bin with its .idx, which says the documents; got a file that is ",
                          name(file.layout().format)),
                   "give --document-separator with the token that ends a document");
  }
  const std::int64_t separator = options.document_separator.value_or(0);
  if (separator < 0 || separator >= options.vocab_size) {
    throw bad_flag("--document-separator",
                   concat("expected a token from 0 to ", options.vocab_size - 1, ", got ", separator),
                   "give the id that ends each document, mostly the tokenizer's end-of-text");
  }
}

} // namespace

TokenSamples TokenSamples::open(const std::filesystem::path& path, const TokenSampleOptions& options) {
  TokenSamples data(TokenFile::open(path,
                                    {.format = options.format,
                                     .dtype = options.dtype,
                                     .vocab_size = options.vocab_size,
                                     .keep_documents = options.documents}),
                    options);
  require_documents(data.file_, options);
  if (data.file_.tokens() < options.sequence) {
    throw InputError(
        {.code = Code::kDataTooShort,
         .what = "a token file holds too few tokens",
         .where = data.file_.path().string(),
         .why = concat("expected at least one sequence of ", options.sequence, " tokens, got ", data.file_.tokens()),
         .fix = "give a longer file or a smaller --seq"});
  }
  data.open_label_mask();
  return data;
}

void TokenSamples::open_label_mask() {
  if (options_.label_mask.empty()) {
    return;
  }
  label_mask_.emplace(File::open_for_reading(options_.label_mask));
  if (label_mask_->size() != static_cast<std::uint64_t>(file_.tokens())) {
    throw InputError({.code = Code::kDataMalformed,
                      .what = "a label mask has another length than its tokens",
                      .where = options_.label_mask.string(),
                      .why = concat("expected one byte for each of ",
                                    format_count(file_.tokens()),
                                    " tokens, got ",
                                    format_count(static_cast<std::int64_t>(label_mask_->size())),
                                    " bytes"),
                      .fix = "write a byte for each token of --data, 0 where it is no target, and no header"});
  }
}

void TokenSamples::fill(std::int64_t sample, const SampleRow& row) const {
  const std::int64_t first = sample * options_.sequence;
  file_.read(first, row.ids);
  std::ranges::copy(row.ids, row.labels.begin());
  if (label_mask_) {
    std::vector<std::uint8_t> mask(row.ids.size());
    label_mask_->read_at(static_cast<std::uint64_t>(first), std::as_writable_bytes(std::span(mask)));
    for (std::size_t index = 0; index < mask.size(); ++index) {
      row.labels[index] = mask[index] == 0 ? kNoTarget : row.labels[index];
    }
  }
  if (has_documents()) {
    number_documents(first, row);
    for (std::size_t index = 1; index < row.ids.size(); ++index) {
      const bool begins = row.documents[index] != row.documents[index - 1];
      row.labels[index] = begins ? kNoTarget : row.labels[index];
    }
  }
}

std::int64_t TokenSamples::count_targets(std::int64_t count, std::int64_t first_position, std::int64_t enough) const {
  const auto length = static_cast<std::size_t>(options_.sequence);
  std::vector<std::int64_t> ids(length);
  std::vector<std::int64_t> labels(length);
  std::vector<std::int64_t> documents(has_documents() ? length : 0);
  std::int64_t targets = 0;
  for (std::int64_t sample = 0; sample < count && targets < enough; ++sample) {
    fill(sample, {.ids = ids, .labels = labels, .documents = documents});
    targets += std::count_if(
        labels.begin() + first_position, labels.end(), [](std::int64_t label) { return label != kNoTarget; });
  }
  return targets;
}

void TokenSamples::number_documents(std::int64_t first, const SampleRow& row) const {
  const std::vector<std::int64_t>& starts = file_.document_starts();
  auto next = std::ranges::upper_bound(starts, first); // the document that begins at or before `first` is number 0
  std::int64_t document = 0;
  for (std::size_t index = 0; index < row.ids.size(); ++index) {
    if (next != starts.end() && *next == first + static_cast<std::int64_t>(index)) {
      ++document;
      ++next;
    }
    row.documents[index] = document;
    if (options_.document_separator == row.ids[index]) {
      ++document;
    }
  }
}

std::int64_t TokenSamples::count_separators(std::int64_t tokens) const {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(tokens));
  file_.read(0, ids);
  return std::ranges::count(ids, *options_.document_separator);
}

std::string TokenSamples::description() const {
  std::string text = concat(name(file_.layout().format),
                            " ",
                            name(file_.layout().type),
                            ", ",
                            format_count(file_.tokens()),
                            " tokens, ",
                            format_count(samples()),
                            " samples");
  if (file_.layout().format == TokenFormat::kMegatron) {
    text += concat(", ", format_count(file_.documents()), " documents");
    text += options_.documents ? " kept apart" : has_documents() ? " by the index" : " not kept apart (--documents)";
  }
  const std::int64_t looked_at = std::min(file_.tokens(), kLookedAt);
  const std::string part = looked_at == file_.tokens() ? "" : concat(" of the first ", format_count(looked_at));
  if (options_.document_separator) {
    text += concat(", token ",
                   *options_.document_separator,
                   " ends a document: ",
                   format_count(count_separators(looked_at)),
                   part.empty() ? " times" : concat(" times in", part.substr(3)));
  }
  if (label_mask_) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(looked_at));
    label_mask_->read_at(0, std::as_writable_bytes(std::span(mask)));
    const auto targets = std::ranges::count_if(mask, [](std::uint8_t byte) { return byte != 0; });
    text += concat(", ", format_count(targets), part.empty() ? "" : part, " tokens are targets");
  }
  return text;
}

} // namespace tieshard

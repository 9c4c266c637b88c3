#include "tieshard/cli/runtime/data_flags.h"

#include <limits>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/runtime/ranks.h"
#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

TokenFormat format_of(const std::string& text) {
  for (const TokenFormat format : {TokenFormat::kRaw, TokenFormat::kLlmC, TokenFormat::kMegatron}) {
    if (text == name(format)) {
      return format;
    }
  }
  return TokenFormat::kAuto;
}

} // namespace

TokenDataOptions DataFlags::options() const {
  return {.format = format_of(format),
          .dtype = token_dtype_flag(dtype),
          .label_mask = label_mask,
          .documents = documents,
          .document_separator = document_separator,
          .target = target};
}

void add_data_flags(CLI::App& verb, DataFlags& flags) {
  verb.add_option("--data-format", flags.format, "Of token files; auto: what their content says (docs/training.md)")
      ->type_name("auto|raw|llm.c|megatron")
      ->check(one_of({"auto", "raw", "llm.c", "megatron"}))
      ->capture_default_str();
  add_token_dtype_flag(verb, flags.dtype);
  verb.add_option("--label-mask", flags.label_mask, "A byte for each token of --data, 0 where it is no target")
      ->type_name("FILE")
      ->check(any_text("a file"));
  verb.add_flag("--documents", flags.documents, "Documents of Megatron's index do not see one another");
  verb.add_option("--document-separator",
                  flags.document_separator,
                  "The same with documents that end at this token; their first tokens are no targets")
      ->type_name("ID")
      ->check(whole_number(0, std::numeric_limits<std::int32_t>::max()));
  verb.add_option("--target-len",
                  flags.target,
                  "Of an encoder-decoder (T5): the last tokens of each sample are what it has to say; 0: a decoder's")
      ->check(whole_number(0, 100'000'000))
      ->capture_default_str();
}

void add_evaluation_flags(CLI::App& verb, TrainConfig& config) {
  verb.add_option("--eval-data", config.eval_data, "Token file that the loss is reported of, at the end at least")
      ->type_name("FILE")
      ->check(any_text("a file"));
  verb.add_option("--eval-label-mask", config.eval_label_mask, "As --label-mask, of --eval-data")
      ->type_name("FILE")
      ->check(any_text("a file"));
  verb.add_option("--eval-every", config.eval_every, "Steps between evaluations; 0: after the last step only")
      ->check(whole_number(0, 1'000'000'000))
      ->capture_default_str();
  verb.add_option("--eval-samples", config.eval_samples, "First sequences of --eval-data to use; 0: all")
      ->check(whole_number(0, 1'000'000'000'000))
      ->capture_default_str();
}

void apply(const DataFlags& flags, TrainConfig& config) {
  const TokenDataOptions options = flags.options();
  config.data_format = options.format;
  config.data_dtype = options.dtype;
  config.label_mask = options.label_mask;
  config.documents = options.documents;
  config.document_separator = options.document_separator;
  config.target = options.target;
  const bool asks = !config.eval_label_mask.empty() || config.eval_every > 0 || config.eval_samples > 0;
  if (asks && config.eval_data.empty()) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has nothing to act on",
                      .where = !config.eval_label_mask.empty() ? "--eval-label-mask"
                               : config.eval_every > 0         ? "--eval-every"
                                                               : "--eval-samples",
                      .why = "expected --eval-data beside it, got none",
                      .fix = "leave it out, or give the token file to evaluate on"});
  }
}

} // namespace tieshard::cli

#include "tieshard/cli/runtime/generate_verb.h"

#include <charconv>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include <ATen/Parallel.h>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/cli/runtime/compute_flags.h"
#include "tieshard/cli/runtime/tokenizer.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/families/gpt2.h"
#include "tieshard/core/families/t5.h"
#include "tieshard/core/generate/end_tokens.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/runtime/generate/generate.h"

namespace tieshard::cli {
namespace {

constexpr const char* kGenerateExamples =
    "Examples:\n"
    "  tieshard generate --model smollm2/ --prompt 'The capital of France is' "
    "--max-new-tokens 32\n"
    "  tieshard generate --model runs/a/export --prompt-tokens 1,504,3575 "
    "--temperature 0.8 --top-p 0.95 --seed 1\n"
    "  tieshard generate --model smollm2/ --adapter runs/b/adapter --prompt "
    "'Dear' --json\n"
    "\n"
    "Greedy unless --temperature, --top-k or --top-p is given. Texts need "
    "tokenizer.json in DIR and a Python with the\n"
    "package tokenizers (python3, or $TIESHARD_PYTHON); tokens need neither. A "
    "text ends at eos_token_id of\n"
    "generation_config.json or config.json.";

/// Of the ranks, one, threads and device are used.
struct GenerateFlags : ComputeFlags {
  std::string prompt{};
  std::string prompt_tokens{};
  std::int64_t max_new_tokens = 64;
  std::optional<double> temperature{};
  std::optional<std::int64_t> top_k{};
  std::optional<double> top_p{};
  std::optional<std::uint64_t> seed{};
  bool ignore_end = false;
  bool no_cache = false;
  bool json = false;
};

InputError bad_flag(const std::string& flag, const std::string& why, const std::string& fix) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has a value that cannot be used",
                     .where = flag,
                     .why = why,
                     .fix = fix});
}

/// "1,2,3".
std::vector<std::int64_t> token_list(const std::string& text) {
  std::vector<std::int64_t> tokens;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (bool more = true; more;) {
    std::int64_t token = -1;
    const auto [rest, error] = std::from_chars(at, end, token);
    more = rest != end && *rest == ',';
    if (error != std::errc() || token < 0 || (rest != end && !more)) {
      throw bad_flag(
          "--prompt-tokens", concat("expected tokens as 1,2,3, got ", text), "write ids with commas between");
    }
    tokens.push_back(token);
    at = rest + 1;
  }
  return tokens;
}

std::vector<std::int64_t> prompt_of(const GenerateFlags& flags) {
  if (flags.prompt.empty() == flags.prompt_tokens.empty()) {
    throw bad_flag("--prompt",
                   concat("expected --prompt or --prompt-tokens, got ", flags.prompt.empty() ? "neither" : "both"),
                   "give one of them");
  }
  if (!flags.prompt_tokens.empty()) {
    return token_list(flags.prompt_tokens);
  }
  std::vector<std::int64_t> tokens = Tokenizer(flags.model).encode(flags.prompt);
  if (tokens.empty()) {
    throw bad_flag("--prompt", "expected a text of at least one token, got none", "give more text");
  }
  return tokens;
}

void require_in_vocab(const std::vector<std::int64_t>& tokens, const HfConfig& config) {
  const std::int64_t vocab = config.integer("vocab_size");
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    if (tokens[index] >= vocab) {
      throw InputError({.code = Code::kTokenOutOfRange,
                        .what = "a token is not in the model's vocabulary",
                        .where = concat("the prompt, token ", index),
                        .why = concat("expected below ", vocab, ", got ", tokens[index]),
                        .fix = "tokenise the text with this model's tokenizer"});
    }
  }
}

/// Before anything is loaded. @throws InputError bad-flag
void require_decoder(const HfConfig& config) {
  if (&require_family(config) == &t5_family()) {
    throw bad_flag("--model",
                   concat("expected a decoder, got an encoder-decoder: ", config.where()),
                   "generate with a decoder; tieshard forward gives an encoder-decoder's logits");
  }
}

SamplingOptions sampling_of(const GenerateFlags& flags) {
  SamplingOptions options{.greedy = !flags.temperature && !flags.top_k && !flags.top_p};
  if (options.greedy && flags.seed) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has nothing to act on",
                      .where = "--seed",
                      .why = "expected --temperature, --top-k or --top-p beside it, got "
                             "none: the likeliest token is taken",
                      .fix = "leave --seed out, or sample"});
  }
  options.temperature = flags.temperature.value_or(1.0);
  options.top_k = flags.top_k.value_or(0);
  options.top_p = flags.top_p.value_or(1.0);
  options.seed = flags.seed.value_or(0);
  return options;
}

/// The text of the tokens. Nothing without a tokenizer, which only a prompt in
/// text insists on; a note says so.
std::optional<std::string> text_of(const GenerateFlags& flags,
                                   const std::vector<std::int64_t>& tokens,
                                   const Console& console) {
  try {
    return Tokenizer(flags.model).decode(tokens);
  } catch (const InputError& error) {
    if (!flags.prompt.empty()) {
      throw;
    }
    console.err.text << concat("note    tokens only: ", error.diagnostic().what, " (", error.diagnostic().fix, ")\n");
    return std::nullopt;
  }
}

std::string list_of(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) {
    text += concat(text.empty() ? "" : ",", token);
  }
  return text;
}

void show(const GenerateFlags& flags,
          const std::vector<std::int64_t>& prompt,
          const Generation& generation,
          const Console& console) {
  const std::optional<std::string> text = text_of(flags, generation.tokens, console);
  if (flags.json) {
    print_json(console.out,
               {{"prompt_tokens", prompt},
                {"tokens", generation.tokens},
                {"text", text ? OrderedJson(*text) : OrderedJson()},
                {"ended", generation.ended}});
    return;
  }
  console.out.text << concat("tokens  ", list_of(generation.tokens), "\n");
  if (text) {
    console.out.text << concat("text    ", printable(*text), "\n");
  }
  if (!generation.ended) {
    console.out.text << concat("        stopped after ", generation.tokens.size(), " tokens (--max-new-tokens)\n");
  }
}

/// Before the first token, where a family has no more positions: all that was generated would be lost at the last.
void check_length(const GenerateFlags& flags, std::size_t prompt, const HfConfig& config, const Console& console) {
  const std::int64_t length = static_cast<std::int64_t>(prompt) + flags.max_new_tokens;
  require_positions(config, length);
  const std::int64_t context = config.integer_or("max_position_embeddings", length);
  if (length > context) {
    print_findings(console.err,
                   {{.level = Level::kWarning,
                     .code = Code::kSequenceTooLong,
                     .what = "sequences are longer than the model's context",
                     .where = "config.json, max_position_embeddings",
                     .why = concat("expected at most ", context, " tokens, got up to ", length),
                     .fix = "give a shorter prompt or a smaller --max-new-tokens"}});
  }
}

void generate_on(const GenerateFlags& flags,
                 const ParallelizeOptions& options,
                 const DeviceMesh& mesh,
                 const Console& console) {
  at::set_num_threads(flags.ranks.threads);
  const SamplingOptions sampling = sampling_of(flags);
  const std::vector<std::int64_t> prompt = prompt_of(flags);
  const Checkpoint checkpoint = Checkpoint::open(flags.model);
  require_decoder(checkpoint.config());
  require_in_vocab(prompt, checkpoint.config());
  const ParallelModel parallel = parallelize(flags.model, mesh, options);
  print_findings(console.err, parallel.findings);
  check_length(flags, prompt.size(), parallel.checkpoint.config(), console);
  GenerateOptions generating{.max_new_tokens = flags.max_new_tokens, .sampling = sampling, .cache = !flags.no_cache};
  if (!flags.ignore_end) {
    generating.end_tokens = end_tokens(parallel.checkpoint);
  }
  const Generation generation = generate(*parallel.model, prompt, generating);
  require_mappings_intact();
  show(flags, prompt, generation, console);
}

void add_sampling_flags(CLI::App& verb, GenerateFlags& flags) {
  verb.add_option("--temperature", flags.temperature, "Sample, with logits divided by this [1]")
      ->check(number_above(0));
  verb.add_option("--top-k", flags.top_k, "Sample among so many of the likeliest tokens")
      ->check(whole_number(1, 1'000'000'000));
  verb.add_option("--top-p",
                  flags.top_p,
                  "Sample among the fewest likeliest tokens of this "
                  "probability together")
      ->check(number_from_to_below(1e-9, 1));
  verb.add_option("--seed", flags.seed, "Of sampling: the same seed gives the same text [0]")
      ->check(whole_number(0, std::numeric_limits<std::int64_t>::max()));
}

void add_flags(CLI::App& verb, GenerateFlags& flags) {
  verb.add_option("--model", flags.model, "Hugging Face checkpoint directory")->required();
  verb.add_option("--prompt", flags.prompt, "Text to go on with; needs tokenizer.json")->check(any_text("a text"));
  verb.add_option("--prompt-tokens", flags.prompt_tokens, "The same as tokens")
      ->type_name("1,2,3")
      ->check(any_text("tokens as 1,2,3"));
  verb.add_option("--max-new-tokens", flags.max_new_tokens, "Tokens at most")
      ->check(whole_number(1, 100'000'000))
      ->capture_default_str();
  add_sampling_flags(verb, flags);
  verb.add_flag("--ignore-eos", flags.ignore_end, "Go on past the tokens that end a text");
  verb.add_flag("--no-cache", flags.no_cache, "Compute all tokens again for each new one: slow, for comparison");
  verb.add_flag("--json", flags.json, "Print JSON: prompt_tokens, tokens, text, ended");
  verb.add_option("--threads", flags.ranks.threads, "Threads")->check(whole_number(1, 1024))->capture_default_str();
  verb.add_option("--device", flags.ranks.device, "cpu, or cuda (docs/devices.md) [cpu]")
      ->check(one_of({"cpu", "cuda"}));
  add_compute_flags(verb, flags);
}

} // namespace

void add_generate(CLI::App& app, Verb& chosen) {
  const auto flags = std::make_shared<GenerateFlags>();
  CLI::App* verb = app.add_subcommand("generate", "Go on with a text, greedily or by sampling");
  add_flags(*verb, *flags);
  verb->footer(kGenerateExamples);
  verb->callback([flags, &chosen] {
    chosen = [flags](const Console& console) {
      const ParallelizeOptions options = flags->options();
      if (rank_count(flags->ranks) != 1) {
        throw bad_flag("generate",
                       "expected one process, got a launcher's of several ranks",
                       "start it without torchrun, srun and mpirun");
      }
      return run_ranks(
          flags->ranks, console, [&](const DeviceMesh& mesh) { generate_on(*flags, options, mesh, console); });
    };
  });
}

} // namespace tieshard::cli

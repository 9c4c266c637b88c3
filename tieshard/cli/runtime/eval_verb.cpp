#include "tieshard/cli/runtime/eval_verb.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include <ATen/Parallel.h>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/cli/runtime/compute_flags.h"
#include "tieshard/cli/runtime/data_flags.h"
#include "tieshard/cli/runtime/dry_run.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/families/family.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/train/evaluation.h"

namespace tieshard::cli {
namespace {

constexpr const char* kEvalExamples =
    "Examples:\n"
    "  tieshard eval --model smollm2/ --data tokens.bin --seq 1024\n"
    "  tieshard eval --model runs/a/export --data valid.bin --ranks 2 --samples 100 --json\n"
    "  tieshard eval --model smollm2/ --adapter runs/b/adapter --data valid.bin\n"
    "\n"
    "The file is cut into sequences of --seq tokens; a rest at its end is not used. Each sequence is read on its own:\n"
    "its first token is predicted by nothing and is no target. Any number of ranks gives the same bits.";

struct EvalFlags : ComputeFlags {
  std::filesystem::path data{};
  DataFlags tokens{};
  std::int64_t sequence = 512;
  std::int64_t batch = 1;
  std::int64_t samples = 0;
  bool json = false;
};

TokenData open_data(const EvalFlags& flags) {
  const Checkpoint checkpoint = Checkpoint::open(flags.model);
  TokenDataOptions options = flags.tokens.options();
  require_target_of(require_family(checkpoint.config()), checkpoint.config(), options.target);
  options.sequence = flags.sequence;
  options.vocab_size = checkpoint.config().integer("vocab_size");
  options.shuffle = false;
  TokenData data = TokenData::open(flags.data, options);
  data.require_evaluable(flags.samples);
  return data;
}

void show(const EvalFlags& flags, const Evaluation& evaluation, const DeviceMesh& mesh, const Console& console) {
  if (flags.json) {
    print_json(console.out,
               {{"loss", evaluation.loss},
                {"perplexity", evaluation.perplexity()},
                {"targets", evaluation.targets},
                {"samples", evaluation.samples},
                {"sequence", flags.sequence},
                {"seconds", evaluation.seconds},
                {"ranks", mesh.size()}});
    return;
  }
  char numbers[80];
  std::snprintf(numbers, sizeof(numbers), "loss %.6f  perplexity %.4f", evaluation.loss, evaluation.perplexity());
  console.out.text << concat(numbers,
                             "  over ",
                             format_count(evaluation.targets),
                             " targets of ",
                             format_count(evaluation.samples),
                             evaluation.samples == 1 ? " sequence in " : " sequences in ",
                             format_seconds(evaluation.seconds),
                             "\n");
}

void eval_on(const EvalFlags& flags,
             const ParallelizeOptions& options,
             const DeviceMesh& mesh,
             const Console& console) {
  at::set_num_threads(flags.ranks.threads);
  std::optional<TokenData> data;
  agree(mesh, "inputs", [&] {
    data.emplace(open_data(flags));
    if (mesh.rank() == 0 && !flags.json) {
      show_data(console, "--data", *data);
    }
  });
  const ParallelModel parallel = parallelize(flags.model, mesh, options);
  const Evaluation evaluation = evaluate(*parallel.model, mesh, *data, flags.batch, flags.samples);
  if (!std::isfinite(evaluation.loss)) {
    throw InputError({.code = Code::kNotFinite,
                      .what = "a loss is no finite number",
                      .where = flags.model.string(),
                      .why = concat("expected a number, got ", evaluation.loss),
                      .fix = "look for NaN and infinities in the weights: tieshard doctor DIR"});
  }
  if (mesh.rank() == 0) {
    print_findings(console.err, parallel.findings);
    show(flags, evaluation, mesh, console);
  }
}

void add_flags(CLI::App& verb, EvalFlags& flags) {
  verb.add_option("--model", flags.model, "Hugging Face checkpoint directory")->required();
  verb.add_option("--data", flags.data, "Token file")->required();
  add_data_flags(verb, flags.tokens);
  verb.add_option("--seq", flags.sequence, "Tokens of a sequence")
      ->check(whole_number(2, 100'000'000))
      ->capture_default_str();
  verb.add_option("--batch", flags.batch, "Sequences that each rank computes at once")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  verb.add_option("--samples", flags.samples, "First sequences of the file to use; 0: all")
      ->check(whole_number(0, 1'000'000'000'000))
      ->capture_default_str();
  verb.add_flag("--json", flags.json, "Print JSON: loss, perplexity, targets, samples, sequence, seconds, ranks");
  add_compute_flags(verb, flags);
  add_rank_flags(verb, flags.ranks);
}

} // namespace

void add_eval(CLI::App& app, Verb& chosen) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* verb = app.add_subcommand("eval", "Loss and perplexity of a token file");
  add_flags(*verb, *flags);
  verb->footer(kEvalExamples);
  verb->callback([flags, &chosen] {
    chosen = [flags](const Console& console) {
      const ParallelizeOptions options = flags->options();
      return run_ranks(flags->ranks, console, [&](const DeviceMesh& mesh) { eval_on(*flags, options, mesh, console); });
    };
  });
}

} // namespace tieshard::cli

#include "tieshard/cli/reshard.h"

#include <memory>

#include <CLI/App.hpp>

#include "tieshard/cli/checkpoint_flags.h"
#include "tieshard/cli/flags.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/cli/model_flags.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/reshard.h"

namespace tieshard::cli {
namespace {

ReshardReport reshard(const ReshardVerbOptions& options, StageProgress& progress) {
  ReshardOptions wanted{.ranks = options.ranks, .dims = declared_dims(options.dims), .verify = options.verify};
  if (!options.shard_dim.empty()) {
    wanted.shard_dim = options.shard_dim == "first" ? ShardDimPolicy::kFirst : ShardDimPolicy::kLast;
  }
  wanted.memory = memory_flag(options.memory, wanted.memory);
  wanted.threads = threads_flag(options.threads);
  wanted.on_progress = [&progress](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  try {
    return reshard_checkpoint(options.in, options.out, wanted);
  } catch (const UsageError& error) {
    // The values came from the user's flags, not from a caller of the library.
    throw InputError(error.diagnostic());
  }
}

} // namespace

int run_reshard(const ReshardVerbOptions& options, const Console& console) {
  StageProgress progress(console, "reshard");
  const ReshardReport report = reshard(options, progress);
  progress.show(options.json,
                OrderedJson{{"directory", report.directory.string()},
                            {"ranks", report.ranks},
                            {"tensors", report.tensors},
                            {"bytes", report.bytes},
                            {"seconds", report.seconds},
                            {"findings", to_json(report.findings)}},
                concat(report.directory.string(),
                       "  ",
                       report.tensors,
                       " tensors, ",
                       format_bytes(report.bytes),
                       " for ",
                       report.ranks,
                       report.ranks == 1 ? " rank in " : " ranks in ",
                       format_seconds(report.seconds)),
                report.findings);
  return kExitSuccess;
}

void add_reshard(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<ReshardVerbOptions>();
  CLI::App* verb = app.add_subcommand("reshard", "Write a training checkpoint for another number of ranks");
  verb->add_option(
          "IN", options->in, "Checkpoint, or a run: then its newest complete one; or any safetensors directory")
      ->required();
  verb->add_option("OUT", options->out, "Directory for the new checkpoint; must not be there")->required();
  add_ranks(*verb, options->ranks);
  verb->get_option("--ranks")->required();
  verb->add_option("--shard-dim", options->shard_dim, "Dimension to shard on: last or first (default: as it is)")
      ->type_name("last|first")
      ->check(one_of({"last", "first"}));
  add_repeated(*verb,
               "--dim",
               options->dims,
               "NAME=D",
               "Shard this parameter and its optimizer state on dimension D (may be repeated)");
  add_memory_and_threads(*verb, options->memory, options->threads);
  verb->add_flag("--verify", options->verify, "Compare the files of IN with the hashes of its manifest first");
  verb->add_flag("--json", options->json, "Print JSON: tensors, bytes, seconds, findings");
  verb->footer(
      "Examples:\n"
      "  tieshard reshard runs/a/ three/ --ranks 3\n"
      "  tieshard reshard runs/a/checkpoints/step-000000200 rows/ --ranks 8 --shard-dim first --verify\n"
      "\n"
      "The values are moved, never changed; torch.distributed.checkpoint loads the result too. docs/checkpoints.md "
      "says "
      "more.");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_reshard(*options, console); }; });
}

} // namespace tieshard::cli

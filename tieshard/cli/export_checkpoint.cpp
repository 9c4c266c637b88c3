#include "tieshard/cli/export_checkpoint.h"

#include <memory>

#include <CLI/App.hpp>

#include "tieshard/cli/checkpoint_flags.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/cli/model_flags.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/export_checkpoint.h"

namespace tieshard::cli {
namespace {

ExportCheckpointOptions export_options(const ExportVerbOptions& options, StageProgress& progress) {
  ExportCheckpointOptions wanted;
  wanted.plain = options.merge;
  wanted.config_from = options.config_from;
  if (!options.dtype.empty()) {
    wanted.dtype = dtype_flag("--dtype", options.dtype);
  }
  if (!options.max_shard_size.empty()) {
    wanted.max_shard_bytes = size_flag("--max-shard-size", options.max_shard_size);
  }
  wanted.memory = memory_flag(options.memory, wanted.memory);
  wanted.threads = threads_flag(options.threads);
  wanted.verify = options.verify;
  wanted.on_progress = [&progress](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  return wanted;
}

/// What both verbs have.
void add_flags(CLI::App& verb, const std::shared_ptr<ExportVerbOptions>& options, const std::string& dtype_default) {
  verb.add_option("OUT", options->out, "Directory for the model; must not be there")->required();
  verb.add_option(
          "--config-from", options->config_from, "Directory with config.json and tokenizer (default: the source)")
      ->type_name("DIR");
  verb.add_option("--dtype", options->dtype, concat("Dtype of floating-point tensors (default: ", dtype_default, ")"))
      ->type_name("DTYPE");
  verb.add_option(
          "--max-shard-size", options->max_shard_size, "Largest weights file (default 50GiB); more get an index")
      ->type_name("SIZE");
  add_memory_and_threads(verb, options->memory, options->threads);
  verb.add_flag("--verify", options->verify, "Compare the source with the hashes of its manifest first");
  verb.add_flag("--json", options->json, "Print JSON: files, tensors, bytes, what is left out, findings");
}

} // namespace

int run_export(const ExportVerbOptions& options, const Console& console) {
  StageProgress progress(console, options.merge ? "merge" : "export");
  const ExportCheckpointReport report = export_checkpoint(options.in, options.out, export_options(options, progress));
  progress.show(options.json,
                OrderedJson{{"directory", report.directory.string()},
                            {"files", report.files},
                            {"left_out", report.left_out},
                            {"tensors", report.tensors},
                            {"bytes", report.bytes},
                            {"seconds", report.seconds},
                            {"findings", to_json(report.findings)}},
                concat(report.directory.string(),
                       "  ",
                       report.tensors,
                       " tensors, ",
                       format_bytes(report.bytes),
                       " in ",
                       format_seconds(report.seconds),
                       "; left out: ",
                       report.left_out.size(),
                       " (optimizer state, aliases)"),
                report.findings);
  return kExitSuccess;
}

void add_export(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<ExportVerbOptions>();
  CLI::App* verb = app.add_subcommand("export", "Write a training checkpoint as a model that transformers loads");
  verb->add_option("CKPT", options->in, "Training checkpoint, or a run: then its newest complete one")->required();
  add_flags(*verb, options, "config.json's");
  verb->footer(
      "Examples:\n"
      "  tieshard export runs/a/ model/\n"
      "  tieshard export runs/a/checkpoints/step-000000200 model/ --dtype bfloat16 --max-shard-size 5GB --verify\n"
      "\n"
      "Parameters only, each once; padding beyond vocab_size is trimmed; read back before it appears. "
      "docs/checkpoints.md "
      "says more.");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_export(*options, console); }; });
}

void add_merge(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<ExportVerbOptions>();
  options->merge = true;
  CLI::App* verb = app.add_subcommand("merge", "Put sharded safetensors files together, whoever wrote them");
  verb->add_option(
          "IN", options->in, "Directory of torch.distributed.checkpoint's, of plain safetensors, or a checkpoint")
      ->required();
  add_flags(*verb, options, "as stored");
  verb->footer(
      "Examples:\n"
      "  tieshard merge dcp-save/ model/ --config-from smollm2/\n"
      "  tieshard merge shards/ one-file/ --max-shard-size 100GB\n"
      "\n"
      "A hole, an overlap or files of several saves are refused. Without a config.json the tensors alone are written.");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_export(*options, console); }; });
}

} // namespace tieshard::cli

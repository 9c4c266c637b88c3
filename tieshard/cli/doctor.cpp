#include "tieshard/cli/doctor.h"

#include <algorithm>
#include <thread>

#include <CLI/App.hpp>

#include "tieshard/cli/doctor_text.h"
#include "tieshard/cli/flags.h"

namespace tieshard::cli {
namespace {

int thread_count(int asked) {
  constexpr unsigned kMost = 8;
  return asked > 0 ? asked : static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, kMost));
}

DoctorOptions doctor_options(const DoctorVerbOptions& flags) {
  const LocalShardOptions load = flags.load.options();
  return {.ranks = flags.ranks,
          .policy = flags.shard.policy(),
          .dims = declared_dims(flags.shard.dims),
          .resolve = flags.open.options(),
          .sources = flags.load.sources(),
          .param_dtype = flags.shard.dtype(),
          .read_buffer = load.read_buffer,
          .host_ram = load.host_ram,
          .check_values = load.check_values,
          .threads = thread_count(flags.threads)};
}

} // namespace

int run_doctor(const DoctorVerbOptions& options, const Console& console) {
  const DoctorReport report = diagnose(options.directory, doctor_options(options));
  if (options.json) {
    print_json(console.out, doctor_document(report, options.ranks));
  } else {
    print_doctor(report, options.ranks, console.out);
  }
  return report.verdict() == Verdict::kRefuse ? kExitInput : kExitSuccess;
}

void add_doctor(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<DoctorVerbOptions>();
  CLI::App* verb = app.add_subcommand("doctor", "Say whether a checkpoint would load, and all that is odd about it");
  verb->add_option("DIR", options->directory, "Checkpoint directory: config.json and safetensors files")->required();
  add_ranks(*verb, options->ranks);
  add_shard_flags(*verb, options->shard);
  add_open_flags(*verb, options->open);
  add_load_flags(*verb, options->load);
  verb->add_option("--threads", options->threads, "Threads that read values (default: one a processor, at most 8)")
      ->type_name("N")
      ->check(whole_number(1, 1024).description("from 1 to 1024"));
  verb->add_flag("--json", options->json, "Print JSON: verdict, findings, ties, bytes of each rank");
  verb->footer(
      "Examples:\n"
      "  tieshard doctor smollm2/ --ranks 2\n"
      "  tieshard doctor untied/ --ranks 8 --tie lm_head.weight=model.embed_tokens.weight\n"
      "  tieshard doctor smollm2/ --ranks 2 --json | jq -r '.findings[].code'\n"
      "\n"
      "Exit status: 0 it loads, with or without warnings; 2 it does not.");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_doctor(*options, console); }; });
}

} // namespace tieshard::cli

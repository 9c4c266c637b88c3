#include "tieshard/cli/doctor.h"

#include <optional>
#include <string>
#include <utility>

#include <CLI/App.hpp>

#include "tieshard/cli/checkpoint_flags.h"
#include "tieshard/cli/doctor_log.h"
#include "tieshard/cli/doctor_text.h"
#include "tieshard/cli/flags.h"
#include "tieshard/cli/ladder.h"
#include "tieshard/cli/run_report.h"
#include "tieshard/cli/saved_as_model.h"
#include "tieshard/core/report/model_report.h"

namespace tieshard::cli {
namespace {

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
          .deep = flags.deep,
          .threads = threads_flag(flags.threads)};
}

int status_of(const DoctorReport& report, const DoctorVerbOptions& options) {
  if (report.unreadable()) {
    return kExitPeer;
  }
  const bool passes =
      report.verdict() == Verdict::kOk || (report.verdict() == Verdict::kWarn && !options.fail_on_warning);
  return passes ? kExitSuccess : kExitInput;
}

/// Why the ladder was not climbed: it says nothing of the checkpoint.
Diagnostic not_tried(std::string why, std::string fix) {
  return {.level = Level::kNote,
          .code = Code::kRungFailed,
          .what = "the ladder could not be climbed; the diagnosis is without it",
          .where = "--try",
          .why = std::move(why),
          .fix = std::move(fix)};
}

/// Climbs the ladder where that is asked for and the checkpoint loads; what it finds is added to `report`.
std::optional<Ladder> try_ladder(const DoctorVerbOptions& options, DoctorReport& report) {
  constexpr std::int64_t kMostRanks = 4096; // of tieshard forward
  if (!options.climb || report.verdict() == Verdict::kRefuse) {
    return std::nullopt;
  }
  if (options.ranks > kMostRanks) {
    report.findings.push_back(not_tried(concat("expected --ranks up to ", kMostRanks, ", got ", options.ranks),
                                        "give fewer ranks with --try"));
    return std::nullopt;
  }
  try {
    const SavedAsModel source(options.directory, SavedPart::kValues);
    Ladder ladder = climb({.directory = source.path(),
                           .ranks = options.ranks,
                           .open = options.open,
                           .shard = options.shard,
                           .load = options.load});
    report.findings.insert(report.findings.begin(), ladder.findings.begin(), ladder.findings.end());
    return ladder;
  } catch (const Error& error) {
    report.findings.push_back(
        not_tried(concat(error.diagnostic().what, ": ", error.diagnostic().why), error.diagnostic().fix));
    return std::nullopt;
  }
}

/// @throws InputError bad-flag where a flag of the checkpoint's own diagnosis stands beside a log or a configuration
void refuse_beside_log(const DoctorVerbOptions& options) {
  if (options.html.empty() && !options.climb) {
    return;
  }
  throw InputError({.code = Code::kBadFlag,
                    .what = "flags that do not go together",
                    .where = concat("tieshard doctor ", options.html.empty() ? "--try" : "--html"),
                    .why = concat("expected the diagnosis of a checkpoint alone, got ",
                                  options.log.empty() ? "--accelerate-config" : "--log",
                                  " beside it"),
                    .fix = "run tieshard doctor DIR with this flag, and again with the log or the configuration"});
}

} // namespace

int run_doctor(const DoctorVerbOptions& options, const Console& console) {
  if (!options.log.empty() || !options.accelerate.empty()) {
    refuse_beside_log(options);
    return run_doctor_log({.log = options.log,
                           .accelerate = options.accelerate,
                           .directory = options.directory,
                           .doctor = doctor_options(options),
                           .json = options.json,
                           .fail_on_warning = options.fail_on_warning},
                          console);
  }
  if (options.directory.empty()) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "there is nothing to look at",
                      .where = "tieshard doctor",
                      .why = "expected DIR, --log or --accelerate-config, got none of them",
                      .fix = "name a checkpoint, or the log of a run that failed"});
  }
  DoctorReport report = diagnose(options.directory, doctor_options(options));
  const std::optional<Ladder> ladder = try_ladder(options, report);
  if (!options.html.empty()) {
    const ModelReportOptions page{
        .title = options.directory, .ranks = options.ranks, .host_ram = options.load.options().host_ram};
    write_page(model_report(report, page), options.html, console);
  }
  if (options.html == "-") {
    return status_of(report, options);
  }
  if (options.json) {
    OrderedJson document = doctor_document(report, options.ranks);
    if (ladder) {
      document["ladder"] = to_json(*ladder);
    }
    print_json(console.out, document);
  } else {
    if (ladder) {
      print_ladder(*ladder, console.out);
    }
    print_doctor(report, options.ranks, console.out);
  }
  return status_of(report, options);
}

void add_doctor(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<DoctorVerbOptions>();
  CLI::App* verb = app.add_subcommand("doctor", "Say whether a checkpoint would load, and all that is odd about it");
  verb->add_option(
      "DIR",
      options->directory,
      "Checkpoint directory (config.json and safetensors files), a weights file, or a training checkpoint");
  verb->add_option(
          "--log",
          options->log,
          "Traceback or log of PyTorch FSDP, accelerate, transformers, DeepSpeed or torchtitan; - for standard input")
      ->type_name("FILE")
      ->check(any_text("a file"));
  verb->add_option("--accelerate-config", options->accelerate, "accelerate's YAML: check it against ties and layers")
      ->type_name("FILE")
      ->check(any_text("a file"));
  add_ranks(*verb, options->ranks);
  verb->get_option("--ranks")->required(false)->capture_default_str();
  add_shard_flags(*verb, options->shard);
  add_open_flags(*verb, options->open);
  add_load_flags(*verb, options->load);
  verb->add_flag("--deep", options->deep, "Look at every value, not only at 64 MiB of them")
      ->excludes(verb->get_option("--no-check-values"));
  verb->add_option_function<std::string>(
          "--fail-on",
          [options](const std::string& level) { options->fail_on_warning = level == "warning"; },
          "What makes the exit status 2: error (default), or a warning too")
      ->type_name("error|warning")
      ->check(one_of({"error", "warning"}));
  add_threads(*verb, options->threads);
  verb->add_flag(
      "--try",
      options->climb,
      "Compute a forward: eager, from meta, sharded on 1 rank, on --ranks; name the first that fails or differs");
  verb->add_flag("--json", options->json, "Print JSON: verdict, findings, ties, bytes of each rank");
  verb->add_option("--html", options->html, "Write the findings, ties and bytes as a page; - for standard output")
      ->type_name("FILE")
      ->check(any_text("a file"));
  verb->footer(
      "Examples:\n"
      "  tieshard doctor smollm2/ --ranks 2\n"
      "  tieshard doctor untied/ --ranks 8 --tie lm_head.weight=model.embed_tokens.weight\n"
      "  tieshard doctor smollm2/ --deep --fail-on warning\n"
      "  tieshard doctor smollm2/ --ranks 2 --try\n"
      "  tieshard doctor smollm2/ --ranks 8 --html report.html\n"
      "  tieshard doctor smollm2/ --log train.log --accelerate-config fsdp.yaml\n"
      "  accelerate launch train.py 2>&1 | tieshard doctor --log -\n"
      "  tieshard doctor smollm2/ --ranks 2 --json | jq -r '.findings[].code'\n"
      "\n"
      "Exit status: 0 it loads, with or without warnings; 2 it does not, or --fail-on says so; 4 it cannot be read.\n"
      "With --log: 2 when a known failure is in it, or --fail-on says so.");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_doctor(*options, console); }; });
}

} // namespace tieshard::cli

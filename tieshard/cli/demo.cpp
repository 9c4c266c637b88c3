#include "tieshard/cli/demo.h"

#include <array>
#include <chrono>
#include <cstring>
#include <iomanip>

#include <CLI/App.hpp>

#include "tieshard/cli/demo_checkpoint.h"
#include "tieshard/cli/demo_checks.h"
#include "tieshard/cli/demo_text.h"
#include "tieshard/cli/flags.h"
#include "tieshard/cli/plan.h"
#include "tieshard/cli/runtime_program.h"
#include "tieshard/cli/table.h"
#include "tieshard/cli/temporary_folder.h"
#include "tieshard/cli/ties.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr std::int64_t kFewestSteps = 20; // the first and the last ten may not overlap

// Everything that the demo makes, under one folder.
struct DemoPaths {
  fs::path root;
  fs::path model = root / "model";
  fs::path tokens = root / "tokens.bin";
  fs::path run = root / "run";
  fs::path exported = run / "export";
  fs::path metrics = run / "metrics.jsonl";
};

struct Walk {
  DemoPaths paths;
  fs::path runtime;
  std::vector<fs::path> text;
  std::int64_t steps = 0;
};

fs::path demo_folder(const std::string& asked) {
  if (asked.empty()) {
    return make_temporary_folder("demo");
  }
  std::error_code failed;
  if (fs::exists(asked, failed) && !fs::is_empty(asked, failed)) {
    throw InputError({.code = Code::kOutputExists,
                      .what = "the output directory holds something already",
                      .where = asked,
                      .fix = "name a new directory with --out"});
  }
  fs::create_directories(asked, failed);
  if (failed) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "a folder could not be made",
                     .where = asked,
                     .why = failed.message(),
                     .fix = "name another one with --out"});
  }
  return fs::absolute(asked);
}

std::vector<fs::path> text_files(const DemoOptions& options) {
  std::vector<fs::path> files(options.text.begin(), options.text.end());
  if (files.empty()) {
    files = own_documents(own_program());
  }
  if (files.empty()) {
    throw InputError(
        {.code = Code::kFileNotFound,
         .what = "the demo found no text to train on",
         .where = own_program().string(),
         .why = "expected the documents of the source tree, or share/doc/tieshard beside the program's bin",
         .fix = "name text files with --text"});
  }
  return files;
}

void print_heading(const Stream& out, int number, std::string_view text) {
  out.text << (number == 1 ? "" : "\n") << out.paint(Tone::kStrong, concat("[", number, "/5] ", text)) << "\n"
           << std::flush;
}

Diagnostic demo_failed(std::string where, std::string why, std::string fix) {
  return {.code = Code::kDemoFailed,
          .what = "the demo did not reach its goal",
          .where = std::move(where),
          .why = std::move(why),
          .fix = std::move(fix)};
}

void make_inputs(const DemoPaths& paths, const std::vector<fs::path>& text, const Stream& out) {
  std::error_code failed;
  fs::create_directory(paths.model, failed);
  write_demo_checkpoint(paths.model);
  const std::size_t tokens = write_byte_tokens(text, paths.tokens);
  Table table({left(), left(), left()});
  table.add({"model", paths.model.string(), "tied Llama, random weights, lm_head.weight not stored"});
  table.add({"tokens",
             paths.tokens.string(),
             concat(format_count(static_cast<std::int64_t>(tokens)), " bytes of ", counted(text.size(), "document"))});
  table.print(out, 2);
}

int train(const Walk& settings) {
  const DemoPaths& paths = settings.paths;
  return run_program(settings.runtime,
                     {"train",
                      "--model",
                      paths.model.string(),
                      "--data",
                      paths.tokens.string(),
                      "--out",
                      paths.run.string(),
                      "--ranks",
                      std::to_string(kRanks),
                      "--steps",
                      std::to_string(settings.steps),
                      "--lr",
                      "3e-3",
                      "--batch",
                      "4",
                      "--seq",
                      "128",
                      "--threads",
                      "1"});
}

std::string two_decimals(double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << value;
  return text.str();
}

// What a check throws (an export that cannot be opened) is a fault like one that it returns.
std::string fault_of(const std::function<std::string()>& check) {
  try {
    return check();
  } catch (const Error& error) {
    return error.what();
  }
}

// Empty when the loss fell far enough.
std::string loss_fault(const DemoPaths& paths, const Stream& out) {
  const std::vector<double> losses = read_losses(paths.metrics);
  if (losses.size() < static_cast<std::size_t>(kFewestSteps)) {
    return concat("expected at least ", kFewestSteps, " losses, got ", losses.size());
  }
  const LossFall fall = loss_fall(losses);
  std::string figures = concat("mean loss of the first ten steps ",
                               two_decimals(fall.first),
                               ", of the last ten ",
                               two_decimals(fall.last),
                               " (",
                               two_decimals(fall.last / fall.first),
                               " x, goal at most ",
                               two_decimals(LossFall::kGoal),
                               " x)");
  if (!fall.reached()) {
    return figures;
  }
  out.text << "  " << out.paint(Tone::kGood, "ok") << "  " << figures << "\n";
  return {};
}

// Empty when the export is whole.
std::string export_fault(const DemoPaths& paths, const Stream& out) {
  const ResolvedModel source = resolve_model(paths.model);
  const std::vector<std::string> faults = export_faults(source, paths.exported);
  if (!faults.empty()) {
    return concat(faults.front(), faults.size() == 1 ? "" : concat(", and ", faults.size() - 1, " more"));
  }
  out.text << "  " << out.paint(Tone::kGood, "ok") << "  " << counted(source.checkpoint.tensors().size(), "tensor")
           << " reopened: none missing, none stored twice, dtypes as in the source";
  for (const TieGroup& group : source.ties.groups()) {
    out.text << "; " << group.aliases.front().name << " is " << group.canonical << ", not stored";
  }
  out.text << "\n";
  return {};
}

void print_places(const DemoPaths& paths, const Stream& out) {
  Table table({left(), left()});
  table.add({"model", paths.model.string()});
  table.add({"tokens", paths.tokens.string()});
  table.add({"metrics", paths.metrics.string()});
  table.add({"export", paths.exported.string()});
  table.print(out, 2);
}

int walk(const Walk& settings, const Console& console) {
  const Stream& out = console.out;
  const DemoPaths& paths = settings.paths;
  print_heading(out, 1, "make a small tied checkpoint and tokens");
  make_inputs(paths, settings.text, out);

  print_heading(out, 2, "which names are one weight: tieshard ties");
  run_ties({.directory = paths.model.string()}, console);

  print_heading(out, 3, concat("what each of ", kRanks, " ranks will hold: tieshard plan --ranks ", kRanks));
  run_plan({.directory = paths.model.string(), .ranks = kRanks}, console);

  print_heading(out, 4, concat("load, shard, train and export: tieshard train --ranks ", kRanks));
  if (const int status = train(settings); status != kExitSuccess) {
    print_diagnostic(
        console.err,
        demo_failed("tieshard train", concat("it ended with status ", status), "see its own message above"));
    return status;
  }

  print_heading(out, 5, "check the loss and the export");
  if (const std::string fault = fault_of([&] { return loss_fault(paths, out); }); !fault.empty()) {
    print_diagnostic(console.err, demo_failed(paths.metrics.string(), fault, "give it more --steps, or other --text"));
    return kExitAnswerIsNo;
  }
  if (const std::string fault = fault_of([&] { return export_fault(paths, out); }); !fault.empty()) {
    print_diagnostic(console.err, demo_failed(paths.exported.string(), fault, "report this as a bug of tieshard"));
    return kExitAnswerIsNo;
  }
  return kExitSuccess;
}

} // namespace

int run_demo(const DemoOptions& options, const Console& console) {
  // Before anything is made: the demo cannot go on without these two.
  const fs::path runtime = options.runtime.empty() ? runtime_program() : fs::path(options.runtime);
  const std::vector<fs::path> text = text_files(options);
  const auto begin = std::chrono::steady_clock::now();
  const DemoPaths paths{.root = demo_folder(options.directory)};
  const int status = walk({.paths = paths, .runtime = runtime, .text = text, .steps = options.steps}, console);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  console.out.text << "\nthe " << (status == kExitSuccess ? "whole" : "broken") << " walk took "
                   << format_seconds(took.count());
  if (options.clean) {
    std::error_code failed;
    fs::remove_all(paths.root, failed);
    console.out.text << "; " << paths.root.string() << " is removed, as --clean asks\n";
  } else {
    console.out.text << "; " << (status == kExitSuccess ? "everything" : "what there is of it") << " is in\n";
    print_places(paths, console.out);
  }
  return status;
}

void add_demo(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<DemoOptions>();
  CLI::App* verb = app.add_subcommand("demo", "Make, plan, train, export and check a tiny tied model, under a minute");
  verb->add_option("--out", options->directory, "New or empty folder for everything (default: a temporary folder)")
      ->type_name("DIR");
  verb->add_option("--text", options->text, "Text files to train on (default: tieshard's own documents)")
      ->type_name("FILE...");
  verb->add_option("--steps", options->steps, "Training steps, at least 20 (default 120)")
      ->type_name("S")
      ->check(whole_number(kFewestSteps, 1'000'000));
  verb->add_flag("--clean", options->clean, "Remove the folder at the end");
  verb->footer(
      "Exit status 1 when the mean of the last ten losses is above 0.8 x that of the first ten, or the export is not "
      "whole.\n\n"
      "Examples:\n"
      "  tieshard demo\n"
      "  tieshard demo --out walk/ --steps 300 --text notes/*.txt");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_demo(*options, console); }; });
}

} // namespace tieshard::cli

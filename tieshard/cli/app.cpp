#include "tieshard/cli/app.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "tieshard/cli/completion.h"
#include "tieshard/cli/demo.h"
#include "tieshard/cli/diff.h"
#include "tieshard/cli/doctor.h"
#include "tieshard/cli/export_checkpoint.h"
#include "tieshard/cli/inspect.h"
#include "tieshard/cli/load.h"
#include "tieshard/cli/man_page.h"
#include "tieshard/cli/merge_adapter.h"
#include "tieshard/cli/plan.h"
#include "tieshard/cli/report.h"
#include "tieshard/cli/reshard.h"
#include "tieshard/cli/run_report.h"
#include "tieshard/cli/runtime_program.h"
#include "tieshard/cli/ties.h"

namespace tieshard::cli {
namespace {

constexpr const char* kAbout = "tieshard: tied weights, sharded over ranks, trained and exported as one parameter.";

constexpr const char* kExamples =
    "Examples:\n"
    "  tieshard inspect smollm2/                  what the checkpoint is and holds\n"
    "  tieshard ties smollm2/                     which names are one weight, and why\n"
    "  tieshard plan smollm2/ --ranks 8           what each rank will hold and read\n"
    "  tieshard doctor smollm2/ --ranks 8         would it load, and what is odd about it\n"
    "  tieshard check runs/a/export --expect tied an answer for CI, in one line\n"
    "  tieshard diff smollm2/ runs/a/export       in what two checkpoints differ\n"
    "  tieshard load smollm2/ --ranks 2           load it and give account of every element\n"
    "  tieshard train --model smollm2/ --data tokens.bin --out runs/a --ranks 2 --steps 200\n"
    "  tieshard eval --model runs/a/export --data valid.bin      loss and perplexity\n"
    "  tieshard generate --model runs/a/export --prompt 'The sea'\n"
    "  tieshard merge-adapter smollm2/ runs/a/adapter merged/    a LoRA adapter added into the weights\n"
    "  tieshard reshard runs/a/ three/ --ranks 3  a training checkpoint for another number of ranks\n"
    "  tieshard export runs/a/ model/             a training checkpoint as a model that transformers loads\n"
    "  tieshard merge dcp-save/ model/            sharded files of torch.distributed.checkpoint put together\n"
    "  tieshard demo                              the whole walk on a tiny model, under a minute\n"
    "\n"
    "Exit status: 0 success, 1 the answer is no (check, diff, demo), 2 a file or flag is wrong, 3 a call is wrong,\n"
    "4 a file cannot be read, or the disk, the network or another rank failed, 70 a bug in tieshard.";

// `tieshard help [VERB]` is `tieshard [VERB] --help` for those who type it that way.
void add_help(CLI::App& app, Verb& chosen) {
  const auto topic = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("help", "Show this text, or the help of one verb");
  verb->add_option("VERB", *topic, "A verb of this program");
  verb->callback([&app, topic, &chosen] {
    chosen = [&app, topic](const Console& console) {
      if (is_runtime_verb(*topic)) {
        hand_over_to_runtime({*topic, "--help"});
      }
      const auto asked = [topic](const CLI::App* candidate) { return candidate->get_name() == *topic; };
      const std::vector<const CLI::App*> found = std::as_const(app).get_subcommands(asked);
      if (found.empty() && !topic->empty()) {
        throw InputError({.code = Code::kBadFlag,
                          .what = "there is no such verb",
                          .where = "tieshard help",
                          .why = concat("got ", *topic),
                          .fix = "see `tieshard help`"});
      }
      // Not app.help(): that would show the help of the verb that was parsed, which is `help`.
      console.out.text << (found.empty()
                               ? app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal)
                               : found.front()->help(app.get_name(), CLI::AppFormatMode::Normal));
      return kExitSuccess;
    };
  });
}

// Listed for the help only: run_tieshard hands their lines over before anything is parsed.
void list_runtime_verbs(CLI::App& app) {
  app.add_subcommand("train", "Train a model over ranks and export it (tieshard-runtime)");
  app.add_subcommand("eval", "Loss and perplexity of a token file (tieshard-runtime)");
  app.add_subcommand("generate", "Go on with a text, greedily or by sampling (tieshard-runtime)");
  app.add_subcommand("forward", "Write a model's logits for given tokens (tieshard-runtime)");
}

} // namespace

const char* version() {
  return TIESHARD_VERSION;
}

int run_tieshard(int argc, const char* const* argv, const Console& console) {
  if (argc > 1 && is_runtime_verb(argv[1])) {
    const auto hand_over = [&]() -> int { hand_over_to_runtime({argv + 1, argv + argc}); };
    return run_verb(hand_over, console);
  }
  Verb chosen;
  CLI::App app(kAbout, "tieshard");
  app.set_version_flag("--version", concat("tieshard ", version()));
  app.require_subcommand(0, 1);
  app.footer(kExamples);
  add_inspect(app, chosen);
  add_ties(app, chosen);
  add_plan(app, chosen);
  add_doctor(app, chosen);
  add_check(app, chosen);
  add_diff(app, chosen);
  add_report(app, chosen);
  add_load(app, chosen);
  add_merge_adapter(app, chosen);
  add_reshard(app, chosen);
  add_export(app, chosen);
  add_merge(app, chosen);
  list_runtime_verbs(app);
  add_demo(app, chosen);
  add_completion(app, chosen);
  add_man(app, chosen);
  add_help(app, chosen);
  return run_command_line(app, argc, argv, chosen, console);
}

} // namespace tieshard::cli

// tieshard/cli/runtime/main.cpp
//
// The program with torch in it, `tieshard-runtime`: the verbs that compute.
//
// Flow: `tieshard train | eval | generate | forward` -> [this] -> a file each

#include <csignal>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "tieshard/cli/app.h"
#include "tieshard/cli/report.h"
#include "tieshard/cli/runtime/eval_verb.h"
#include "tieshard/cli/runtime/forward_verb.h"
#include "tieshard/cli/runtime/generate_verb.h"
#include "tieshard/cli/runtime/train_verb.h"
#include "tieshard/runtime/tensors/heap_allocator.h"

int main(int argc, char** argv) {
  namespace cli = tieshard::cli;
  std::signal(SIGPIPE, SIG_DFL);
  tieshard::use_heap_allocator();
  cli::Verb chosen;
  CLI::App app("tieshard-runtime: the verbs of tieshard that compute. Mostly started by `tieshard`.", "tieshard");
  app.set_version_flag("--version", std::string("tieshard ") + cli::version());
  app.require_subcommand(0, 1);
  cli::add_train(app, chosen);
  cli::add_eval(app, chosen);
  cli::add_generate(app, chosen);
  cli::add_forward(app, chosen);
  return cli::run_command_line(app, argc, argv, chosen, cli::standard_console());
}

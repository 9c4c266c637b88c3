// tieshard/cli/demo.h
//
// `tieshard demo`: the whole walk on a tiny model. Makes, plans, trains on two ranks, exports, checks the export.
//
// Flow: app -> [this] -> demo_checkpoint, demo_text, ties, plan, runtime_program, demo_checks

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct DemoOptions {
  std::string directory{};         ///< where everything goes; empty: a new temporary folder
  std::vector<std::string> text{}; ///< files to train on; empty: tieshard's own documents
  std::int64_t steps = 120;
  std::string runtime{}; ///< the program that trains; empty: tieshard-runtime beside this one
  bool clean = false;    ///< remove the folder at the end
};

/// Status 1 with the diagnostic demo-failed when the loss does not fall to 0.8 x its beginning or the export is not
/// whole; the status of `tieshard train` when that fails.
/// @throws InputError output-exists, file-not-found (no text, no tieshard-runtime)
int run_demo(const DemoOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_demo(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

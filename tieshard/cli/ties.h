// tieshard/cli/ties.h
//
// `tieshard ties DIR`: which names are one weight, and why.
//
// Flow: app -> [this] -> model_view, table, json_output

#pragma once

#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct TiesOptions {
  std::string directory{};
  OpenFlags open{};
  bool json = false;
};

/// Prints the tie groups with their evidence; findings go to stderr, with --json into the document.
/// @throws InputError whatever resolve_model throws; bad-flag
int run_ties(const TiesOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_ties(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

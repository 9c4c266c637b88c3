// tieshard/cli/inspect.h
//
// `tieshard inspect DIR`: what a checkpoint is and holds, on one screen; one tensor's values with --tensor.
//
// Flow: app -> [this] -> tensor_values, model_view, name_pattern, table, json_output

#pragma once

#include <cstdint>
#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct InspectOptions {
  std::string directory{};
  std::string tensor{};   ///< a stored name or an alias; empty: the whole checkpoint
  std::int64_t first = 8; ///< values of `tensor` to show
  OpenFlags open{};
  bool all = false; ///< every tensor on a line of its own
  bool json = false;
};

/// Works for every architecture; ties are shown where the family is known.
/// @throws InputError whatever resolve_model throws; unknown-parameter, bad-flag
int run_inspect(const InspectOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_inspect(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

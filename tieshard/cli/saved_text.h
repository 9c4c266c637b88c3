// tieshard/cli/saved_text.h
//
// A training checkpoint as inspect and ties show it.
//
// Flow: inspect, ties -> [this] -> core/state/saved_model.h

#pragma once

#include <string>

#include "tieshard/cli/json_output.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

/// Shows the checkpoint at `path`, or the newest complete one of a run: step, ranks, optimizer, sizes and ties; with
/// `all` each parameter. With `json` {"directory", "step", "mesh", "optimizer", "parameters", "groups", "files",
/// "findings"}.
/// @throws InputError what open_saved_model throws
int show_saved(const std::string& path, bool all, bool json, const Console& console);

} // namespace tieshard::cli

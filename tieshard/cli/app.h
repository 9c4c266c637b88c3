// tieshard/cli/app.h
//
// The program `tieshard`: its verbs, its help, its version.
//
// Flow: main -> [this] -> inspect, ties, plan, doctor, load, demo, runtime_program

#pragma once

#include "tieshard/cli/console.h"

namespace tieshard::cli {

/// Runs one command line and gives the exit status. `train` and `forward` replace this process by tieshard-runtime.
int run_tieshard(int argc, const char* const* argv, const Console& console);

/// Version of tieshard, e.g. "0.1.0".
const char* version();

} // namespace tieshard::cli

// tieshard/cli/diff.h
//
// `tieshard diff A B`: in what two checkpoints differ. `tieshard check DIR`: one line and an exit status for CI.
//
// Flow: app -> [this] -> core/doctor/checkpoint_diff.h, core/ties

#pragma once

#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct DiffVerbOptions {
  std::string first{};
  std::string second{};
  bool no_values = false;
  int threads = 0; ///< 0: one for each processor, at most 8
  OpenFlags open{};
  bool json = false;
};

struct CheckVerbOptions {
  std::string directory{};
  std::string expect{};  ///< "tied" or "untied"; empty: not asked
  std::string same_as{}; ///< another checkpoint; empty: not asked
  int threads = 0;
  OpenFlags open{};
  bool json = false;
};

/// @return kExitSuccess when they are the same, else kExitAnswerIsNo
/// @throws InputError what resolve_model throws; PeerError io-failed
int run_diff(const DiffVerbOptions& options, const Console& console);

/// @return kExitSuccess when everything that is asked holds, else kExitAnswerIsNo
/// @throws InputError bad-flag (nothing is asked), what resolve_model throws; PeerError io-failed
int run_check(const CheckVerbOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_diff(CLI::App& app, Verb& chosen);
void add_check(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

// tieshard/cli/doctor.h
//
// `tieshard doctor DIR --ranks N`: would this checkpoint load, and load right?
//
// Flow: app -> [this] -> core/doctor/doctor.h, doctor_text, json_output

#pragma once

#include <cstdint>
#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct DoctorVerbOptions {
  std::string directory{};
  std::int64_t ranks = 1;
  OpenFlags open{};
  ShardFlags shard{};
  LoadFlags load{};
  int threads = 0;   ///< 0: one for each processor, at most 8
  bool deep = false; ///< look at every value
  bool fail_on_warning = false;
  bool climb = false; ///< try a forward, rung by rung (ladder.h)
  bool json = false;
  std::string log{};        ///< of another trainer; "-": standard input; empty: none
  std::string accelerate{}; ///< accelerate's configuration; empty: none
  std::string html{};       ///< file for a page; "-": standard output; empty: none
};

/// Prints every finding, the ties and a verdict. The findings are the result, so they go to stdout.
/// @return kExitPeer when something cannot be read, kExitInput when another finding is an error (with fail_on_warning
///         also a warning), else kExitSuccess
/// @throws InputError bad-flag; PeerError io-failed
int run_doctor(const DoctorVerbOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_doctor(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

// tieshard/cli/doctor_log.h
//
// `tieshard doctor --log` and `--accelerate-config`: what another trainer's traceback and configuration say, with the
// checkpoint beside them where it is given.
//
// Flow: doctor -> [this] -> core/failures, accelerate_config

#pragma once

#include <string>

#include "tieshard/cli/report.h"
#include "tieshard/core/doctor/doctor.h"

namespace tieshard::cli {

struct LogVerbOptions {
  std::string log{};        ///< file, or "-" for standard input; empty: none
  std::string accelerate{}; ///< accelerate's YAML; empty: none
  std::string directory{};  ///< checkpoint; empty: none
  DoctorOptions doctor{};   ///< of the checkpoint's diagnosis
  bool json = false;
  bool fail_on_warning = false;
};

/// Prints the failures that the log shows, each with its phase, cause, checklist and fixes; then what is to be said of
/// the configuration, and of the checkpoint.
/// @return kExitInput when a failure is known or a finding is an error (with fail_on_warning also a warning); else
///         kExitSuccess
/// @throws InputError file-not-found, file-unreadable, yaml-malformed; PeerError io-failed,
///         file-unreadable (also of a log that is empty or no text)
int run_doctor_log(const LogVerbOptions& options, const Console& console);

} // namespace tieshard::cli

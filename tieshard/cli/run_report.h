// tieshard/cli/run_report.h
//
// `tieshard report OUT`: a training run as a page. And where a page goes.
//
// Flow: app, doctor -> [this] -> core/report/run_report.h

#pragma once

#include <string>

#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct RunReportOptions {
  std::string directory{};
  std::string html{}; ///< file for the page; "-": standard output; empty: OUT/report.html
};

/// Writes `page` to `file` in one piece, or to standard output for "-". A link is followed; a device or FIFO is written
/// to; a file that is no earlier page stays as it is.
/// @throws InputError bad-flag (no such directory, such a file); PeerError disk-full, io-failed
void write_page(const std::string& page, const std::string& file, const Console& console);

/// @throws InputError what read_run throws
int run_report_verb(const RunReportOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_report(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli

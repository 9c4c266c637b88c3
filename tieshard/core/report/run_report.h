// tieshard/core/report/run_report.h
//
// A training run as a page: loss, learning rate, gradient norm, tokens per second, memory by rank, events, flags.
//
// Flow: run_files -> [this] -> runtime/train (OUT/report.html), cli/run_report (tieshard report)

#pragma once

#include <filesystem>
#include <string>

#include "tieshard/core/report/run_files.h"

namespace tieshard {

/// A whole HTML document. @param title  of the page: the run's directory
std::string run_report(const RunFiles& run, const std::string& title);

/// Reads the run and writes OUT/report.html in one piece.
/// @throws InputError what read_run throws; PeerError disk-full, io-failed
void write_run_report(const std::filesystem::path& directory);

} // namespace tieshard

// tieshard/core/report/model_report.h
//
// A diagnosis as a page: verdict, findings with their fixes, ties drawn, bytes by unit and by rank, memory with its
// limit.
//
// Flow: core/doctor/doctor.h -> [this] -> cli/doctor (--html)

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tieshard/core/doctor/doctor.h"

namespace tieshard {

struct ModelReportOptions {
  std::string title{}; ///< of the page: the directory
  std::int64_t ranks = 1;
  std::optional<std::uint64_t> host_ram{}; ///< the limit of a load, where there is one
};

/// A whole HTML document.
std::string model_report(const DoctorReport& report, const ModelReportOptions& options);

} // namespace tieshard

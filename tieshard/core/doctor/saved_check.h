// tieshard/core/doctor/saved_check.h
//
// Would a run go on from this training checkpoint, on how many ranks it may be? What resuming checks, as findings.
//
// Flow: doctor.cpp -> [this] -> core/state/saved_model.h

#pragma once

#include <filesystem>

#include "tieshard/core/doctor/doctor.h"
#include "tieshard/core/doctor/finding_list.h"

namespace tieshard {

/// Looks at a training checkpoint, or the newest complete one of a run: its manifest, the size of each file (with
/// options.deep its hash), that the blocks cover every tensor once, ties, and what options.ranks ranks would hold of
/// its parameters. Fills all of the report but its findings, as far as it comes.
void check_saved(const std::filesystem::path& path,
                 const DoctorOptions& options,
                 DoctorReport& report,
                 FindingList& findings);

} // namespace tieshard

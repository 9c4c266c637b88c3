// tieshard/core/failures/tie_evidence.h
//
// What a checkpoint says about the tie that a log's failure is about.
//
// Flow: core/doctor/doctor.h, recognise -> [this] -> checklist, cli/doctor_log

#pragma once

#include <string>

#include "tieshard/core/doctor/doctor.h"
#include "tieshard/core/failures/recognise.h"

namespace tieshard {

/// The group that `name` belongs to; null: none.
const TieGroup* group_of(const DoctorReport& report, const std::string& name);

/// A finding that a declared tie does not hold: copies or shapes that differ. Empty `name`: any.
const Diagnostic* broken_tie(const DoctorReport& report, const std::string& name);

/// Where the failure is the lookup of a tied name, and neither a group nor a broken tie has the name, it becomes
/// name-not-found. To be called with the report of a checkpoint whose names are known.
void correct_by(const DoctorReport& report, LogDiagnosis& diagnosis);

} // namespace tieshard

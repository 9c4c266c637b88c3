// tieshard/cli/doctor_text.h
//
// A DoctorReport as text and as JSON.
//
// Flow: doctor -> [this] -> report, table, json_output

#pragma once

#include "tieshard/cli/console.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/core/doctor/doctor.h"

namespace tieshard::cli {

/// What the checkpoint is, its ties, the findings from the worst on, and the verdict in the last line.
void print_doctor(const DoctorReport& report, std::int64_t ranks, const Stream& out);

/// {"verdict", "findings", "ties", "architecture", "family", "files", "tensors", "stored_bytes", "parameters", "ranks",
/// "per_rank": [{"first", "last", "elements", "shard_bytes", "read_bytes"}]}
OrderedJson doctor_document(const DoctorReport& report, std::int64_t ranks);

} // namespace tieshard::cli

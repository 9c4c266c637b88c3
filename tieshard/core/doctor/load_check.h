// tieshard/core/doctor/load_check.h
//
// Everything between an opened model and its bytes: the plan, the source of each parameter, what each rank reads.
//
// Flow: doctor.cpp -> [this] -> core/plan, core/io/local_shards.h

#pragma once

#include <optional>
#include <vector>

#include "tieshard/core/doctor/doctor.h"
#include "tieshard/core/doctor/finding_list.h"
#include "tieshard/core/doctor/value_check.h"

namespace tieshard {

/// What a load of a model comes to.
struct LoadCheck {
  std::vector<UnitBytes> units{};      ///< of the plan
  std::int64_t parameters = 0;         ///< elements, each storage once
  std::vector<RankBytes> ranks{};      ///< empty when it cannot be loaded
  std::uint64_t peak_bytes = 0;        ///< that a load adds to the process of rank 0, which has the largest parts
  std::vector<CheckedTensor> values{}; ///< stored tensors that give a parameter its values, or scale them
};

/// The units of a plan, whole.
std::vector<UnitBytes> units_of(const ShardPlan& plan);

/// Plans the load of `model` as the loader does. Adds what it refuses and what it warns of to `findings`; points into
/// `model`.
LoadCheck check_load(const ResolvedModel& model, const DoctorOptions& options, FindingList& findings);

} // namespace tieshard

// tieshard/core/failures/failure.h
//
// A failure that is known: how it is recognised, why it comes about, what to look at, and how it is mended.
//
// Flow: log_facts -> [this] (failures_of_*.cpp) -> recognise, checklist

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/failures/log_facts.h"

namespace tieshard {

/// Where in a run a failure shows.
enum class Phase { kMaterialize, kShard, kOptimizer, kStep, kSave };

/// "materialize", "shard", "optimizer", "step", "save".
std::string_view id(Phase phase);

/// What answers a step of a checklist.
enum class CheckBy {
  kYou,       ///< nothing that a log or a checkpoint says
  kLog,       ///< the log itself: it is found
  kTied,      ///< the checkpoint: are the names one weight
  kStored,    ///< the checkpoint: which of the names are stored
  kConflict,  ///< the checkpoint: do stored copies differ
  kLoads,     ///< the checkpoint: does the diagnosis find an error
  kHiddenDim, ///< tieshard's plan: tied weights are cut on their last dim
};

struct CheckStep {
  CheckBy by = CheckBy::kYou;
  std::string text{};
};

/// What a match takes out of a log.
struct Match {
  std::string parameter{};      ///< empty: the log names none
  std::optional<Phase> phase{}; ///< where it differs from the failure's own
};

/// One entry of docs/failures.md.
struct Failure {
  const char* id;
  Phase phase;
  const char* what;
  const char* cause;
  std::vector<CheckStep> steps;
  const char* fix_there; ///< in the terms of the framework that failed
  const char* fix_here;  ///< with tieshard
  std::optional<Match> (*match)(const LogException& exception);
};

/// What a lookup of a tied name turns out to be where the checkpoint says that the name is not tied.
inline constexpr const char* kNameNotFound = "name-not-found";

/// All of them, the more special before the more general.
const std::vector<Failure>& known_failures();

const std::vector<Failure>& failures_of_ties();
const std::vector<Failure>& failures_of_units();
const std::vector<Failure>& failures_of_loading();
const std::vector<Failure>& failures_of_optimizers();
const std::vector<Failure>& failures_of_runs();

/// The first dotted name of a parameter in `text`, as 'model.norm.weight' or lm_head.weight; empty: none.
std::string parameter_in(std::string_view text);

/// The key of a KeyError, where it is one name of a parameter and nothing else; empty: it is not.
std::string parameter_key(const LogException& exception);

/// Of all names of parameters in `text` the first in alphabetical order: ranks print sets in orders of their own.
std::string least_parameter_in(std::string_view text);

/// Whether all of `words` stand in `text`, in this order, whatever lies between.
bool says(std::string_view text, const std::vector<std::string_view>& words);

} // namespace tieshard

// tieshard/core/failures/recognise.h
//
// From a log to the failures in it: the cause first, what only followed from it last.
//
// Flow: log_facts, failure -> [this] -> checklist, cli/doctor_log

#pragma once

#include <vector>

#include "tieshard/core/failures/failure.h"

namespace tieshard {

struct Recognised {
  const Failure* failure = nullptr; ///< one of known_failures()
  Match match{};
  const LogException* exception = nullptr; ///< of the facts
  std::vector<int> ranks{};                ///< that show the same, ascending; -1 (no rank named) left out

  Phase phase() const {
    return match.phase.value_or(failure->phase);
  }
};

struct LogDiagnosis {
  std::vector<Recognised>
      failures; ///< each failure and parameter once, in the log's order; process-killed, then peer-lost last
  const LogException* unknown = nullptr; ///< the last exception, where none is known but one that only followed
};

/// Points into `facts`.
LogDiagnosis recognise(const LogFacts& facts);

} // namespace tieshard

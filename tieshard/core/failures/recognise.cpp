#include "tieshard/core/failures/recognise.h"

#include <algorithm>
#include <string_view>

namespace tieshard {
namespace {

std::optional<Recognised> recognise_one(const LogException& exception) {
  for (const Failure& failure : known_failures()) {
    if (std::optional<Match> match = failure.match(exception)) {
      return Recognised{.failure = &failure, .match = std::move(*match), .exception = &exception};
    }
  }
  return std::nullopt;
}

void add(std::vector<Recognised>& failures, Recognised found) {
  const auto same = std::ranges::find_if(failures, [&](const Recognised& known) {
    return known.failure == found.failure && known.match.parameter == found.match.parameter;
  });
  const LogException* exception = found.exception;
  const int rank = exception->rank;
  Recognised& entry = same == failures.end() ? failures.emplace_back(std::move(found)) : *same;
  if (exception->type == kEndLine && entry.exception->type != kEndLine) { // it says it in one line
    entry.exception = exception;
  }
  if (rank >= 0 && !std::ranges::binary_search(entry.ranks, rank)) {
    entry.ranks.insert(std::ranges::upper_bound(entry.ranks, rank), rank);
  }
}

/// How far it may be from the cause: a lost peer follows from anything, a kill may be a launcher's.
int follows(const Recognised& found) {
  const std::string_view id = found.failure->id;
  return id == "peer-lost" ? 2 : id == "process-killed" ? 1 : 0;
}

} // namespace

LogDiagnosis recognise(const LogFacts& facts) {
  LogDiagnosis diagnosis;
  for (const LogException& exception : facts.exceptions) {
    if (std::optional<Recognised> found = recognise_one(exception)) {
      add(diagnosis.failures, std::move(*found));
    } else {
      diagnosis.unknown = &exception;
    }
  }
  std::ranges::stable_sort(diagnosis.failures, {}, follows);
  if (!diagnosis.failures.empty() && follows(diagnosis.failures.front()) == 0) {
    diagnosis.unknown = nullptr; // what is known explains it
  }
  return diagnosis;
}

} // namespace tieshard

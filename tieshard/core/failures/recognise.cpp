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
  const int rank = found.exception->rank;
  Recognised& entry = same == failures.end() ? failures.emplace_back(std::move(found)) : *same;
  if (rank >= 0 && !std::ranges::binary_search(entry.ranks, rank)) {
    entry.ranks.insert(std::ranges::upper_bound(entry.ranks, rank), rank);
  }
}

bool only_follows(const Recognised& found) {
  return std::string_view(found.failure->id) == "peer-lost";
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
  std::ranges::stable_partition(diagnosis.failures, [](const Recognised& found) { return !only_follows(found); });
  if (!diagnosis.failures.empty() && !only_follows(diagnosis.failures.front())) {
    diagnosis.unknown = nullptr; // what is known explains it
  }
  return diagnosis;
}

} // namespace tieshard
